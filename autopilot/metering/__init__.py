"""Metering: GPU time by owner, its use, and its cost.

`prices` reads the prices of a GPU-hour, a kilowatt-hour and its carbon.
"""
