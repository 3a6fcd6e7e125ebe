"""The actions, least disruptive first. One row each; the planner runs them in this order."""

from __future__ import annotations

from autopilot.core.actions import (
    admit_gang,
    backfill,
    defragment,
    enforce_limit,
    preempt,
    reclaim_borrowed,
    recover,
    resize,
    scale_ahead,
)
from autopilot.core.planning.draft import Propose

ACTIONS: tuple[tuple[str, Propose], ...] = (
    (admit_gang.NAME, admit_gang.propose),  # start what fits whole; hold room for the head of the order
    (backfill.NAME, backfill.propose),  # use the gaps before reservations; give them back when due
    (defragment.NAME, defragment.propose),  # move running gangs so that one that waits fits
    (reclaim_borrowed.NAME, reclaim_borrowed.propose),  # take back what a queue is owed
    (preempt.NAME, preempt.propose),  # displace lower priority, or share time
    (resize.NAME, resize.propose),  # grow elastic gangs into what is left
    (scale_ahead.NAME, scale_ahead.propose),  # replicas before the load that is foreseen
    (recover.NAME, recover.propose),  # stop what cannot go on where it is
    (enforce_limit.NAME, enforce_limit.propose),  # suspend what goes on for too long
)
