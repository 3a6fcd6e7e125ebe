"""Alerts that arrive, their runbooks, and what the controller proposes about them.

A runbook can ask for a proposal. It cannot raise a mode, choose a victim, waive a guard, or run a command.
"""
