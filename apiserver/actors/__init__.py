"""The controllers of a cluster, small: each follows the store and writes through the server."""
