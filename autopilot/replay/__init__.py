"""Decide a recorded run again: the same policy must give the same decisions, another one a comparison.

Replay reads each observation from the journal and calls `reconcile`, carrying its own memory. Under
another policy the observations are the recorded ones, and so is what has happened (effects under way,
disruptions, pauses); only what is intended (reservations, wishes) is its own. So each difference is what
the other policy would have wished at that moment, not where it would have led (`OPEN_LOOP`).
"""

from __future__ import annotations

from pathlib import Path

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Policy
from autopilot.journal.reader import JournalReader
from autopilot.replay.again import Decide, Progress, verify
from autopilot.replay.compare import compare
from autopilot.replay.findings import OPEN_LOOP, Difference, PolicyDiff, ReplayResult, Shift, TickDiff
from autopilot.replay.text import replay_lines

__all__ = [
    "OPEN_LOOP",
    "Difference",
    "PolicyDiff",
    "Progress",
    "ReplayResult",
    "Shift",
    "TickDiff",
    "replay",
    "replay_lines",
]


def replay(
    path: Path | str,
    policy: Policy | None = None,
    progress: Progress | None = None,
    *,
    keep: int = 200,
    decide: Decide = reconcile,
) -> ReplayResult:
    """Decide the record at `path` again.

    Without `policy`: every decision, its instructions and the memory they rest on are compared with the
    recorded ones, up to the first difference. With `policy`: all ticks are decided under it, and what
    it wishes is compared; the first `keep` ticks that differ are listed. Raises `InputError` when the
    record cannot be read, and for one without ticks.
    """
    with JournalReader(path) as reader:
        total = len(reader)
        if not total:
            raise InputError(
                f"{path}: the record holds no tick, so there is nothing to decide again; "
                "its run ended before its first decision"
            )
        if policy is None:
            return verify(reader, total, progress, decide)
        return compare(reader, policy, total, progress, keep, decide)
