"""The interface of guards, and the three answers: allow, deny, waive."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autopilot.core.effects.draft import Draft
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.snapshot import I32
from autopilot.core.planning.context import Context

Check = Callable[[Proposal, Draft, Context], Verdict]
"""A guard: proposal (names, for people), draft (table rows) and context of the tick to a verdict. It only reads."""


def allow(guard: str, value: float, unit: str, threshold: float, at_least: bool = False) -> Verdict:
    """A verdict in favour, with the number behind it."""
    return Verdict(guard, True, Code.OK, value, unit, threshold, at_least)


def deny(guard: str, code: Code, value: float, unit: str, threshold: float, at_least: bool = False) -> Verdict:
    """A verdict against."""
    return Verdict(guard, False, code, value, unit, threshold, at_least)


def waive(guard: str, value: float, unit: str, threshold: float, at_least: bool = False) -> Verdict:
    """A verdict in favour of an eviction by contract, beyond the reach of the rule. The number is on record."""
    return Verdict(guard, True, Code.WAIVED_CONTRACT, value, unit, threshold, at_least)


def relied_on(draft: Draft, ctx: Context) -> I32:
    """Rows of telemetry behind a draft: those of its workload, its victims and the replicas of its service.

    GPUs come first, then instances, as in SignalTable.
    """
    rows = set(draft.victims)
    if draft.workload_row is not None:
        rows.add(draft.workload_row)
    if draft.service_row is not None:
        rows |= set(np.flatnonzero(ctx.observation.snapshot.workloads.service == draft.service_row).tolist())
    layouts = [ctx.whatif.layout_of(row) for row in sorted(rows)]
    gpus, there = len(ctx.observation.snapshot.gpus.uuid), ctx.whatif.places.first
    found = [
        np.where(each.plain | (each.instance >= there), each.gpu, gpus + each.instance)  # what is to be made has none
        for each in layouts
    ]
    return np.unique(np.concatenate(found)).astype(np.int32) if found else np.empty(0, np.int32)
