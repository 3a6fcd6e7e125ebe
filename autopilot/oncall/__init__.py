"""Received alerts, their runbooks, and the controller's proposals about them.

A runbook can ask for a proposal. It cannot raise a mode, choose a victim, waive a guard, or run a command.
"""
