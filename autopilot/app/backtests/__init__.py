"""Backtests of the models on recorded data, the gate they must pass, and promotion in the registry."""
