"""Decide a recorded run again: the same policy must give the same decisions; another policy gives a comparison.

Replay reads each observation from the journal and calls `reconcile` with a memory of its own. Under another policy the
observations are the recorded ones, and so are past events (effects under way, disruptions, pauses); only intentions
(reservations, proposals) belong to that policy. Each difference is therefore what the other policy would propose at
that moment, not where it would have led (`OPEN_LOOP`).
"""

from __future__ import annotations

from pathlib import Path

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Policy
from autopilot.records.journal.reader import JournalReader
from autopilot.records.replay.again import Decide, Progress, verify
from autopilot.records.replay.compare import compare
from autopilot.records.replay.findings import OPEN_LOOP, Difference, PolicyDiff, ReplayResult, Shift, TickDiff
from autopilot.records.replay.text import replay_lines

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

    Without `policy`: every decision, its instructions and its memory are compared with the recorded ones, up to the
    first difference. With `policy`: all ticks are decided under it, and its proposals are compared; the first `keep`
    ticks that differ are listed. Raises `InputError` for a record that cannot be read or has no ticks.
    """
    with JournalReader(path) as reader:
        total = len(reader)
        if not total:
            raise InputError(
                f"{path}: the record holds no ticks, so there is nothing to replay; its run ended before "
                "its first decision"
            )
        if policy is None:
            return verify(reader, total, progress, decide)
        return compare(reader, policy, total, progress, keep, decide)
