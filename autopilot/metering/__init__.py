"""Metering: who held which GPU time, what it was used for, and what it costs.

`prices` reads what a GPU-hour, a kilowatt-hour and its carbon cost.
"""
