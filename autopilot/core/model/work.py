"""Predicates and masks over workloads for several packages, each written once.

Shape [workloads]; with `rows` that of `rows`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Order
from autopilot.core.model.snapshot import (
    F64,
    GPU_MILLI,
    I32,
    Bools,
    ClusterSnapshot,
    NodeTable,
    PlacementTable,
    State,
    Texts,
    WorkloadTable,
)

EVERY: Any = slice(None)

# numpy compares with a member of an enumeration slowly, and these masks are asked for many times in a tick
_STARTING, _RUNNING, _CHECKPOINTING = int(State.STARTING), int(State.RUNNING), int(State.CHECKPOINTING)


def named(column: Texts, names: Collection[str]) -> Bools:
    """True for entries of a column of names among `names`. Shape as `column`.

    `np.isin` compares a column of objects with each name in turn; this looks each entry up once.
    """
    if not names:
        return np.zeros(len(column), np.bool_)
    looked_for = frozenset(names)
    return np.fromiter(map(looked_for.__contains__, column.tolist()), np.bool_, len(column))


def known_or(values: F64, otherwise: float = 0.0) -> F64:
    """The values, with `otherwise` in place of NaN. Shape as `values`."""
    return np.where(np.isnan(values), otherwise, values)


def running_since(workloads: WorkloadTable) -> F64:
    """Start (s) of the present run without a stop. A resize is not a stop. NaN while pending. Shape [workloads]."""
    return np.where(np.isnan(workloads.runs_since_s), workloads.start_s, workloads.runs_since_s)


def progress_s(work: WorkloadTable, rows: I32, at_s: float) -> tuple[F64, F64]:
    """Progress at `at_s`, and the run time passed by then: longer after a stop with lost progress.

    Both have shape [rows].
    """
    start_s = known_or(work.start_s[rows], at_s)
    here_s = np.where(holding_mask(work)[rows], np.maximum(at_s - np.maximum(start_s, 0.0), 0.0), 0.0)
    done_s = work.served_s[rows] + here_s
    return done_s, np.maximum(done_s, work.outlived_s[rows])


def holding_mask(workloads: WorkloadTable) -> Bools:
    """True for workloads with GPUs. Shape [workloads]."""
    return (workloads.state >= _STARTING) & (workloads.state <= _CHECKPOINTING)


def active_mask(work: WorkloadTable) -> Bools:
    """True for starting and running workloads, without those saving to leave."""
    return np.asarray((work.state == _STARTING) | (work.state == _RUNNING))


def stoppable_mask(work: WorkloadTable) -> Bools:
    """True for workloads with GPUs that may be evicted: not opted out, and not leaving or stuck already."""
    return np.asarray(active_mask(work) & ~work.stuck & ~work.excluded)


def leaves_still(snapshot: ClusterSnapshot, row: int, incarnation: int, since_s: float) -> bool:
    """True while the workload of a row still holds the GPUs of its eviction at `since_s`, in `incarnation`.

    A moved status or counter ends nothing: its pods may run on for as long as the cluster takes to stop them. Only
    work started since then holds its GPUs anew.
    """
    work = snapshot.workloads
    if not (snapshot.placements.workload == row).any():
        return False
    moved = int(work.incarnation[row]) != incarnation
    return not (moved and work.state[row] != _CHECKPOINTING and float(work.start_s[row]) > since_s)


def evicted_uids(memory: ControllerMemory) -> list[str]:
    """Workloads with an eviction under way."""
    effects = (entry.instruction for entry in memory.effects.in_flight.values())
    return [effect.subject.uid for effect in effects if effect.operation.stops]


def whole_gpus(work: WorkloadTable, rows: I32 | int = EVERY) -> Bools:
    """True for gangs of whole GPUs, not of shares or MIG instances."""
    return np.asarray((work.gpu_milli[rows] == 0) & (work.mig_profile[rows] < 0))


def divided_mask(nodes: NodeTable) -> Bools:
    """Nodes with GPUs for shares alone: they are shared, and can be turned back. Shape [nodes].

    On nodes that others keep shared, work also gets whole GPUs, as far as these are free.
    """
    return np.asarray((nodes.replicas > 1) & (nodes.sharing_offers != 0))


def on_shares(snapshot: ClusterSnapshot) -> Bools:
    """True for work that requested whole GPUs and holds shares of them. Shape [workloads]."""
    held, found = snapshot.placements, np.zeros(len(snapshot.workloads.id), np.bool_)
    found[held.workload[(held.instance < 0) & (held.milli < GPU_MILLI)]] = True
    return found & whole_gpus(snapshot.workloads)


def gpu_parts(work: WorkloadTable, rows: I32 = EVERY) -> F64:
    """GPUs in one unit of a gang's width: a share is its part of a GPU, anything else is 1."""
    return np.where(work.gpu_milli[rows] > 0, work.gpu_milli[rows] / GPU_MILLI, 1.0)


def overdue_mask(work: WorkloadTable, rows: I32, at_s: float, order: Order) -> Bools:
    """True for gangs with a wait above `order.max_wait_s` at `at_s`."""
    return np.asarray(at_s - work.submit_s[rows] > order.max_wait_s)


def gpu_part(work: WorkloadTable, row: int) -> float:
    """`gpu_parts` of one gang."""
    milli = int(work.gpu_milli[row])
    return milli / GPU_MILLI if milli > 0 else 1.0


def entry_milli(placements: PlacementTable) -> I32:
    """Thousandths of a GPU by placement: a share is its part, an instance counts as a GPU. Shape [placements]."""
    return np.where(placements.instance < 0, placements.milli, GPU_MILLI).astype(np.int32)


def held_gpus(snapshot: ClusterSnapshot, group: I32, groups: int) -> F64:
    """GPUs held by work, by the group of each workload. Shape [groups]."""
    placements = snapshot.placements
    entry = holding_mask(snapshot.workloads)[placements.workload]
    milli = np.bincount(group[placements.workload[entry]], entry_milli(placements)[entry], minlength=groups)
    return np.asarray(milli / GPU_MILLI)
