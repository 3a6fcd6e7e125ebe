"""Decisions and forecasts as a journal holds them: rows, explanations, and the lifetime of a workload."""
