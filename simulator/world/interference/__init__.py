"""Interference of work on one GPU: measured tables, and the true rates that the simulator draws from them."""
