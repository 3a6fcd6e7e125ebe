"""Implementations of the commands of `autopilot`: run, print and write. Only these modules print."""
