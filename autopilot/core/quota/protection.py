"""Protected work, and the extent of its protection.

Work is protected if it may not be preempted, if its class is protected, or if it opted out. Protection counts against
the guarantee of the queue, on each level of its path: protected work starts only within it.

The start of a job fixes its protection:

- firm: started protected within the guarantee of its queue, by us or at its first sight;
- late: declared protected while it ran, or started protected above the guarantee by another controller. Late work comes
  after firm work, the earliest first;
- lent: late work above the guarantee, and work above it that opted out at any time. The owner of these GPUs may take
  them back by contract.

Without any earlier record of starts, running protected work is firm. Late work within the guarantee is protected too,
but it yields if only its place makes room for an owner, while its queue holds more than its guarantee
(docs/decisions/0014-protection.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.snapshot import GPU_MILLI, Bools, ClusterSnapshot, State, WorkloadTable
from autopilot.core.model.work import entry_milli, holding_mask, named
from autopilot.core.quota.counting import Counting
from autopilot.core.quota.ledger import ALL, EPSILON, QuotaLedger


def protected_mask(work: WorkloadTable, classes: Collection[int]) -> Bools:
    """True for protected work: not preemptible, of one of these SLO classes, or opted out. Shape [workloads]."""
    return np.asarray(~work.preemptible | work.excluded | np.isin(work.slo_class, list(classes)))


@dataclass(frozen=True, slots=True)
class Starts:
    """The record of the starts of protected work."""

    conditions: Mapping[Condition, float] = field(default_factory=dict)  # to be kept in memory
    late_s: Mapping[int, float] = field(default_factory=dict)  # start of the protected run of late work, by row
    new: frozenset[int] = frozenset()  # rows of protected work at its first sight
    begins: bool = False  # no earlier record: running work was there before

    def judged(self, work: WorkloadTable, lent: Collection[int], now_s: float) -> Starts:
        """The same after the judgement of new work: the part beyond the guarantee is late from now on."""
        conditions, late_s = dict(self.conditions), dict(self.late_s)
        for row in sorted(self.new):
            kind = ConditionKind.LATE if row in lent else ConditionKind.FIRM
            conditions[Condition(kind, str(work.uid[row]), int(work.incarnation[row]))] = now_s
            if row in lent:
                late_s[row] = now_s
        return Starts(conditions, late_s, frozenset(), self.begins)


def follow_starts(
    snapshot: ClusterSnapshot,
    protected: Bools,
    noted: Mapping[Condition, float],
    now_s: float,
    starting: Collection[int] = (),
) -> Starts:
    """The starts of protected work: seen unprotected in its present incarnation, late, firm, lent, or new.

    Without a queue with a guarantee nothing is owed, and all protection holds. `starting`: rows started by us.
    """
    work = snapshot.workloads
    if not snapshot.queues.guarantee.any():
        return Starts()
    holds = holding_mask(work)
    rows = np.flatnonzero((holds | (work.state == State.PENDING)) & (work.queue > 0))
    followed = Condition(ConditionKind.FOLLOWED, "")
    conditions: dict[Condition, float] = {followed: noted.get(followed, now_s)}
    late_s: dict[int, float] = {}
    new: set[int] = set()
    said = {each.uid for each in noted if each.kind == ConditionKind.LENT}
    columns = (work.uid[rows], work.incarnation[rows], protected[rows], holds[rows])
    for row, uid, incarnation, sheltered, runs in zip(rows.tolist(), *(each.tolist() for each in columns), strict=True):
        seen, late, firm = (Condition(kind, str(uid), incarnation) for kind in _STARTS)
        if not sheltered:
            conditions[seen] = noted.get(seen, now_s)
        elif firm in noted and (runs or row in starting):
            conditions[firm] = noted[firm]
        elif runs and (seen in noted or late in noted):
            late_s[row] = noted.get(late, now_s)
            conditions |= {each: noted[each] for each in (seen,) if each in noted} | {late: late_s[row]}
        elif runs and uid:
            new.add(row)
        if runs and uid in said:
            lent = Condition(ConditionKind.LENT, str(uid), incarnation)
            conditions |= {lent: noted[lent]} if lent in noted else {}
    return Starts(conditions, late_s, frozenset(new), followed not in noted)


_STARTS = (ConditionKind.UNPROTECTED, ConditionKind.LATE, ConditionKind.FIRM)


def let_start(work: WorkloadTable, protected: Bools, uids: Collection[str], now_s: float) -> dict[Condition, float]:
    """Conditions of protected work at our start of it: it counts as firm, also if other work starts before it."""
    rows = np.flatnonzero(protected & named(work.uid, uids)) if uids else ()
    return {Condition(ConditionKind.FIRM, str(work.uid[row]), int(work.incarnation[row])): now_s for row in rows}


def lent_rows(
    snapshot: ClusterSnapshot,
    ledger: QuotaLedger,
    protected: Bools,
    starts: Starts,
    counted: Counting | None = None,
) -> dict[int, dict[int, float]]:
    """New, late and opted-out work above the guarantees of its path: the GPUs of each gang, by row and kind.

    Work without a uid (no effect can name it) and work without a queue is never lent.
    """
    if not snapshot.queues.guarantee.any():
        return {}
    work, held, left = snapshot.workloads, snapshot.placements, _guarantees(ledger)
    short = [
        any(used[queue] > owed[queue] + EPSILON for used, owed in zip(ledger.sheltered, left, strict=True))
        for queue in range(len(ledger.paths))
    ]
    crowded = np.array([any(short[each] for each in path) for path in ledger.paths], np.bool_)
    if not crowded.any():
        return {}
    mine = protected & holding_mask(work) & crowded[work.queue] & (work.uid != "")
    entries = np.flatnonzero(mine[held.workload] & ~held.leaving)
    gpus: dict[int, dict[int, float]] = {}
    models = snapshot.nodes.gpu_model[held.node[entries]].tolist()
    widths = (entry_milli(held)[entries] / GPU_MILLI if counted is None else counted.held[entries]).tolist()
    for row, model, width in zip(held.workload[entries].tolist(), models, widths, strict=True):
        taken = gpus.setdefault(row, {})
        for kind in {ALL, ledger.kind_of_model[model]}:
            taken[kind] = taken.get(kind, 0.0) + width

    def turn(row: int) -> tuple[float, bool, float, int]:
        start_s = float(work.start_s[row])
        return starts.late_s.get(row, -np.inf), row in starts.new, np.inf if np.isnan(start_s) else start_s, row

    lent = {}
    for row in sorted(gpus, key=turn):
        parts, path = gpus[row], ledger.paths[int(work.queue[row])]
        fixed = row not in starts.late_s and row not in starts.new and not work.excluded[row]
        if fixed or all(width <= left[kind][queue] + EPSILON for kind, width in parts.items() for queue in path):
            for kind, width in parts.items():
                for queue in path:
                    left[kind][queue] -= width
        else:
            lent[row] = parts
    return lent


def _guarantees(ledger: QuotaLedger) -> list[list[float]]:
    """The larger of the guarantee of each queue and the sum of those below it. Shape [kinds][queues].

    A cohort of Kueue states only the quota that its queues share beside their own.
    """
    found = []
    for owed in ledger.guarantee:
        below = [0.0] * len(owed)
        row = list(owed)
        for queue in range(len(owed) - 1, 0, -1):  # children come after their parents
            row[queue] = max(owed[queue], below[queue])
            below[ledger.parent[queue]] += row[queue]
        found.append(row)
    return found
