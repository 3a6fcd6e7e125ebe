"""Suggested changes, by rule, from the reasons for delays of work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from autopilot.core.model.records import Code
from autopilot.core.model.units import format_gpu_s, format_ratio
from autopilot.explain.proposals import Answer
from autopilot.policies.policy_tree import is_expert
from autopilot.report.data import DecisionRow, PolicyRun
from autopilot.report.words import count, pick

FIELD_OF: dict[Code, str] = {
    Code.STALE_INVENTORY: "freshness.inventory_s",
    Code.STALE_WORK: "freshness.work_s",
    Code.STALE_TELEMETRY: "freshness.telemetry_s",
    Code.PAUSED: "pause.length_s",
    Code.STORM: "storms.per_hour",
    Code.PROTECTED_CLASS: "protection.classes",
    Code.UNSCRUBBED: "tenancy.require_scrub",
    Code.MIN_RUNTIME: "protection.min_runtime_s",
    Code.STOPPED_OFTEN: "protection.most_stops",
    Code.DWELL: "hysteresis.dwell_s",
    Code.COOL_DOWN: "hysteresis.cool_down_s",
    Code.MARGIN: "hysteresis.margin_ratio",
    Code.GIVEN_UP: "preemption.pipelined_timeout_s",
    Code.REFUSED: "pause.window_s",
    Code.BUDGET_CLUSTER: "budget.per_cluster",
    Code.BUDGET_TENANT: "budget.per_tenant",
    Code.BUDGET_NODE: "budget.per_node",
    Code.BUDGET_CONCURRENT: "budget.concurrent",
    Code.BUDGET_CHECKPOINT: "preemption.checkpoint_writers",
    Code.BLAST_RADIUS: "preemption.blast_ratio",
    Code.WITHOUT_CHECKPOINT: "preemption.without_checkpoint",
    Code.FORECAST_STALE: "scale_ahead.forecast_age_s",
    Code.RESERVED: "reservation.depth",
    Code.BOUND: "limits.proposals_per_tick",
}
"""The policy field that sets the limit behind a code; codes without one follow from the cluster, the queues or the
work.
"""
MODE_CODES = frozenset({Code.MODE_OFF, Code.MODE_OBSERVE, Code.MODE_RECOMMEND, Code.NEEDS_APPROVAL})
"""Codes under the mode of the action (`modes.ACTION`)."""


GUARD_SHARE = 0.05
"""Least refused gain for naming a guard, as a fraction of the proposed gain, and of all waiting."""
WAIT_SHARE = 0.2
"""Least part of all waiting for naming a reason."""

WAITING: dict[Code, str] = {
    Code.CAPACITY: "all GPUs were in use. No policy field changes that; more GPUs or less demand would",
    Code.FRAGMENTED: "free GPUs did not have the required shape. Request smaller members",
    Code.TOPOLOGY: "no single domain had room for all members. Relax the topology that jobs request",
    Code.MIG_GEOMETRY: "no MIG instance of the right profile was free. Cut more GPUs of the pool for what jobs request",
    Code.RESERVED: "GPUs were reserved. Lower reservation.depth",
    Code.RUNTIME_UNKNOWN: "its run time was unknown. Have those jobs declare a limit",
    Code.LIMIT: "its queue was at its limit. Raise `limit` of that queue in the cluster file",
    Code.GUARANTEE: "protected work starts inside guarantees only. Raise the guarantee of its queue, or make those "
    "jobs preemptible and of a class that is not protected",
    Code.FAIRNESS: "possible victims were within their fair share. The queues define that division; change guarantees "
    "and weights in the cluster file",
    Code.PRIORITY: "possible victims had no lower priority. Change the priorities if that is not intended",
    Code.POLICY: "its queue may not preempt others. Change the preemption settings of that queue",
    Code.PROTECTED: "the work that blocked it may not be preempted. Fewer classes in protection.classes, or more "
    "preemptible jobs, would help",
    Code.QUOTA: "its queue and its cohort had no quota left. Raise quotas in the cluster file",
    Code.KEPT: "idle quota was held for other queues. Change the lend limits in the cluster file",
    Code.BOUND: "a tick made too many proposals. Raise limits.proposals_per_tick",
}
"""The suggestion for each reason for waiting; reasons without an entry resolve by themselves."""

CURES = {
    Code.FRAGMENTED: "modes.defragment",
    Code.TOPOLOGY: "modes.defragment",
    Code.MIG_GEOMETRY: "modes.regeometry",
}
"""The mode of the action against such waiting; the suggestion names it if it is not automatic."""


def advice(run: PolicyRun) -> tuple[str, ...]:
    """Changes to make next, from the figures of a run; a sentence that says so if there are none."""
    violated = pick(run.result, "invariants", "violated")
    if violated:
        return (
            f"{count(violated)} invariants were violated. That is a defect: report it before you rely on other "
            "figures.",
        )
    found = [*_of_modes(run), *_of_guards(run), *_of_waiting(run)]
    return tuple(found[:MOST_ADVICE]) or (NOTHING,)


MOST_ADVICE = 3
NOTHING = (
    "No change suggested: no guard refused much of the proposed gain, and no reason that a setting can "
    "change caused most of the waiting."
)


def waited(run: PolicyRun) -> dict[str, dict[str, float]]:
    """Reason code -> queue -> GPU time requested by waiting work, in GPU-seconds; the largest queue first."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (queue, code), gpu_s in sorted(run.waited_gpu_s.items(), key=lambda each: (-each[1], each[0])):
        found[code][queue] = gpu_s
    return dict(found)


def _of_modes(run: PolicyRun) -> list[str]:
    """A suggestion if most proposals are blocked by their mode alone."""
    held = [row for row in run.decisions if row.answer in {Answer.RECOMMENDED, Answer.NEEDS_APPROVAL}]
    if 2 * len(held) <= len(run.decisions):
        return []
    action, number = Counter(row.action for row in held).most_common(1)[0]
    return [
        f"{len(held):,} of {len(run.decisions):,} decisions were not carried out because of their mode. "
        f"Set modes.{action} to auto ({number:,} of them, {_most_of(row for row in held if row.action == action)}), "
        "or approve them one by one."
    ]


def _most_of(rows: Iterable[DecisionRow]) -> str:
    """The tenant of most of some decisions, with their number; at least one row."""
    (tenant, number), *_ = Counter(row.tenant for row in rows).most_common(1)
    return f"{number:,} for tenant {tenant}"


def refused_gain(run: PolicyRun) -> dict[str, float]:
    """Reason code -> gain refused by its guard, in GPU-seconds: the largest of each workload, since proposals
    repeat.
    """
    best: dict[tuple[str, str], float] = {}
    for row in run.decisions:
        for _, code, _ in row.refusals:
            key = (code, row.workload)
            best[key] = max(best.get(key, 0.0), row.benefit_gpu_s)
    gains: dict[str, float] = defaultdict(float)
    for (code, _), gain_gpu_s in best.items():
        gains[code] += gain_gpu_s
    return dict(gains)


def _of_guards(run: PolicyRun) -> list[str]:
    """Among guards with a policy limit, the one with the most refused gain, if that is much."""
    accepted = sum(row.benefit_gpu_s for row in run.decisions if row.answer == Answer.ACCEPTED)
    gains = {code: gain for code, gain in refused_gain(run).items() if Code(code) in FIELD_OF}
    code = max(gains, key=lambda each: (gains[each], each), default="")
    whole = max(accepted + gains.get(code, 0.0), sum(run.waited_gpu_s.values()))
    if not code or gains[code] < GUARD_SHARE * whole or not gains[code]:
        return []
    refused = [row for row in run.decisions if any(each == code for _, each, _ in row.refusals)]
    path = FIELD_OF[Code(code)]
    about = ["an expert field"] if is_expert(path) else []
    about += [f"now {run.policy[path]}"] if path in run.policy else []
    now = f" ({', '.join(about)})" if about else ""
    return [
        f"Code {code} refused {len(refused):,} decisions ({_most_of(refused)}) with a gain of "
        f"{format_gpu_s(gains[code])}. If that is too cautious, change {path}{now} and compare both "
        "policies with autopilot simulate."
    ]


def _of_waiting(run: PolicyRun) -> list[str]:
    """The reasons behind most of the waiting, among those within reach of a setting, each with its longest waiting
    queue.
    """
    total = sum(run.waited_gpu_s.values())
    by_code = waited(run)
    sums = {code: sum(queues.values()) for code, queues in by_code.items() if Code(code) in WAITING}
    found = []
    for code, gpu_s in sorted(sums.items(), key=lambda each: (-each[1], each[0])):
        if gpu_s < WAIT_SHARE * total or not gpu_s:
            continue
        why, _, change = WAITING[Code(code)].partition(". ")
        mode = CURES.get(Code(code), "")
        if run.policy.get(mode, "auto") != "auto":
            change = f"Set {mode} to auto (now {run.policy[mode]}), or {change[0].lower()}{change[1:]}"
        queue, most_gpu_s = next(iter(by_code[code].items()))
        span_s = pick(run.result, "makespan_s")
        mean = f", {most_gpu_s / span_s:,.1f} GPUs on average" if span_s else ""
        found.append(
            f"{format_ratio(gpu_s / total)} of the waiting ({format_gpu_s(gpu_s)}) was because {why}; in queue {queue} "
            f"{format_gpu_s(most_gpu_s)}{mean}. {change}."
        )
    return found
