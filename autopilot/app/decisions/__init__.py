"""Decisions and forecasts as a journal holds them: rows, answers, and the life of a workload."""
