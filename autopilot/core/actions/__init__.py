"""The actions, least disruptive first. One row each; the planner runs them in this order."""

from __future__ import annotations

from autopilot.core.actions import admit_gang, backfill
from autopilot.core.draft import Propose

ACTIONS: tuple[tuple[str, Propose], ...] = (
    (admit_gang.NAME, admit_gang.propose),  # start what fits whole; hold room for the head of the order
    (backfill.NAME, backfill.propose),  # use the gaps before reservations; give them back when due
)
