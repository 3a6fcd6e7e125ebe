"""Idle work as victims: the sets that may go together, the cost of a return, and the facts stated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autopilot.core.idle.follow import return_cost_gpu_s
from autopilot.core.idle.ladder import Rung
from autopilot.core.model.memory.idle import IdleStep
from autopilot.core.model.records import Code, Evidence
from autopilot.core.placement.shapes import shape_of
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import ALL, QuotaLedger
from autopilot.core.quota.rules.base import Claim, RankedTarget, Refusal, Room, Takes, Target
from autopilot.core.search.scenario import most_given_up


def takes_idle(ctx: Context, at: int, due: Mapping[int, Rung]) -> Takes:
    """The rule for idle victims: any due work, as far as the gang may start by its quota."""
    row = int(ctx.pending[at])

    def takes(_: QuotaLedger, claim: Claim, _running: Sequence[Claim], room: Room) -> tuple[Target, ...] | Refusal:
        refusal = ctx.quota.may_start(row, round(claim.gpus))
        if refusal is not None:
            return refusal
        most = most_given_up(ctx, shape_of(ctx.observation.snapshot, row, ctx.pending_table.least_gpus[at]))
        targets = [
            RankedTarget(
                Target(rung.row, rung.record.gpus, whole=True),
                0,
                float(ctx.losses.price_gpu_s[rung.row]),
                int(ctx.observation.snapshot.workloads.queue[rung.row]),
            )
            for rung in due.values()
        ]
        unmarked = {
            rung.row: ctx.whatif.layout_of(rung.row).gpus
            for rung in due.values()
            if rung.record.step != IdleStep.MARKED
        }
        found = room.cheapest(
            targets,
            lambda chosen: sum(each.gpus for each in chosen) <= most and _above_guarantees(ctx, chosen, unmarked),
        )
        return found if found is not None else Refusal(Code.CAPACITY, 0.0, claim.gpus)

    return takes


def _above_guarantees(ctx: Context, chosen: Sequence[Target], unmarked: Mapping[int, float]) -> bool:
    """True if work without a mark is above the guarantee of its queue also after the rest of it has left.

    `unmarked`: its GPUs as counted by the quota ledger, by row.
    """
    gone: dict[int, list[float]] = {}
    for each in chosen:
        if each.row in unmarked:
            queue = int(ctx.observation.snapshot.workloads.queue[each.row])
            gone.setdefault(queue, []).append(unmarked[each.row])
    ledger = ctx.quota.ledger
    return not any(ledger.within_guarantee(queue, max(gpus) - sum(gpus), (ALL,)) for queue, gpus in gone.items())


def returns_gpu_s(ctx: Context, rows: Iterable[int], freed_s: float) -> float:
    """Expected cost of the owners of idle work coming back while its GPUs are used by others for `freed_s`."""
    known, cost_gpu_s = ctx.memory.idle, 0.0
    for row in rows:
        record = known.records[str(ctx.observation.snapshot.workloads.uid[row])]
        cost_gpu_s += return_cost_gpu_s(known.owners.get(record.owner), record.gpus * freed_s, ctx.policy)
    return cost_gpu_s


def idle_facts(ctx: Context, rows: Iterable[int]) -> tuple[Evidence, ...]:
    """Idle time of suspended work, time since its owners know, and the owners."""
    records = [ctx.memory.idle.records[str(ctx.observation.snapshot.workloads.uid[row])] for row in rows]
    owners = sorted({each.owner for each in records})
    return (
        Evidence("idle_for", round(ctx.now_s - max(each.since_s for each in records), 3), "s"),
        Evidence("since", round(ctx.now_s - max(each.step_s for each in records), 3), "s"),
        Evidence("owners", ", ".join(owners[:3]) + (", ..." if len(owners) > 3 else "")),
    )
