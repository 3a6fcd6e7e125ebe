"""Scheduling policies of other people: their protocol, their view, their registration, and their runs."""
