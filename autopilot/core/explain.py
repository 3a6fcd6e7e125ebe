"""Decisions and refusals in words, each with its numbers.

Plain functions from records to text: the command line, the page and the report print what they return.
`proposal_words` is one line, `explain_proposal` the whole case with every guard's answer,
`explain_wait` says why one workload waits, and `explain_decision` what one tick did and did not do.
"""

from __future__ import annotations

from collections import Counter
from math import isnan

import numpy as np

from autopilot.core.records import Code, Decision, Evidence, Observation, Proposal, Verdict
from autopilot.core.snapshot import SLO_CLASS_NAMES, State
from autopilot.core.units import format_duration, format_gpu_s

REASONS: dict[Code, str] = {
    Code.CAPACITY: "{value:.0f} GPUs it may use are free, it needs {threshold:.0f}",
    Code.FRAGMENTED: "{value:.0f} GPUs are free, but not in the shape that its {threshold:.0f} need",
    Code.TOPOLOGY: "no single domain holds all its members ({threshold:.0f} GPUs; the best node has room for {value:.0f})",
    Code.MIG_GEOMETRY: "{value:.0f} free instances of its MIG profile, it needs {threshold:.0f}",
    Code.RESERVED: "enough GPUs are free, but they are held for a reservation that it would delay; "
    "beside it {value:.0f} are left, it needs {threshold:.0f}",
    Code.RUNTIME_UNKNOWN: "its run time is unknown and it declares no limit, so it may not start before a reservation",
    Code.LIMIT: "its queue (or one above it) is at its hard limit: {value:.0f} GPUs left, it needs {threshold:.0f}",
    Code.TOO_WIDE: "it is wider than the whole cluster ({value:.0f} of {threshold:.0f} GPUs)",
    Code.EXCLUDED: "it opted out of every action of the autopilot",
    Code.GATED: "it was proposed, but {value:.0f} guard(s) held it",
    Code.BOUND: "this tick already made {value:.0f} proposals, the most that policy allows ({threshold:.0f})",
    Code.MODE_OFF: "the action is switched off",
    Code.MODE_OBSERVE: "the action only observes",
    Code.MODE_RECOMMEND: "the action only recommends; set its mode to approve or auto to let it act",
    Code.NEEDS_APPROVAL: "it waits for a person's approval of this very state",
    Code.REJECTED: "a person rejected it in this state",
    Code.KILL_SWITCH: "the kill switch is on, or cannot be read",
    Code.PAUSED: "the autopilot paused itself {value:.0f} s ago (the pause lasts {threshold:.0f} s)",
    Code.STALE_INVENTORY: "nodes and GPUs were last seen {value:.0f} s ago (limit {threshold:.0f} s)",
    Code.STALE_WORK: "workloads were last seen {value:.0f} s ago (limit {threshold:.0f} s)",
    Code.STALE_TELEMETRY: "telemetry is {value:.0f} s old (limit {threshold:.0f} s)",
    Code.NODE_UNFIT: "{value:.0f} of its nodes or GPUs are not ready, cordoned or unhealthy",
    Code.PARTIAL_GANG: "{value:.0f} GPUs at once are not the whole gang ({threshold:.0f})",
    Code.PARTIAL_EVICTION: "it would take {value:.0f} of a gang's {threshold:.0f} GPUs, never a part",
    Code.PROTECTED_CLASS: "a victim belongs to a protected class",
    Code.OPTED_OUT: "the workload opted out",
    Code.NOT_PREEMPTIBLE: "a victim is not preemptible",
    Code.MIN_RUNTIME: "the youngest victim has run {value:.0f} s (at least {threshold:.0f} s are promised)",
    Code.DWELL: "the wish has lasted {value:.0f} s (it must last {threshold:.0f} s)",
    Code.COOL_DOWN: "a victim was disrupted before; {value:.0f} s of its cool-down are left",
    Code.MARGIN: "a benefit of {value:.0f} GPU-s does not exceed {threshold:.0f} GPU-s (cost and margin)",
    Code.BUDGET_CLUSTER: "{value:.0f} disruptions in the window exceed the cluster's {threshold:.0f}",
    Code.BUDGET_TENANT: "{value:.0f} disruptions in the window exceed the tenant's {threshold:.0f}",
    Code.BUDGET_NODE: "{value:.0f} disruptions in the window exceed the node's {threshold:.0f}",
    Code.BUDGET_CONCURRENT: "{value:.0f} disruptions at once exceed {threshold:.0f}",
    Code.WAIVED_CONTRACT: "the work was started on the promise to give way",
    Code.OK: "in order",
}
"""What each code says; `value` and `threshold` are the numbers that it was judged by."""


def code_words(code: Code, value: float, threshold: float) -> str:
    """A code with its numbers, as a clause."""
    if isnan(value):
        return (
            REASONS[code]
            .replace("{value:.0f}", "an unknown number of")
            .format(value=0.0, threshold=threshold)
        )
    return REASONS[code].format(value=value, threshold=threshold)


def evidence_words(evidence: Evidence) -> str:
    """`gpus 16 GPUs` as `gpus: 16 GPUs`; durations and GPU-seconds readable."""
    value = evidence.value
    if evidence.unit == "s" and isinstance(value, int | float):
        return f"{evidence.name}: {format_duration(float(value))}"
    if evidence.unit == "GPU-s" and isinstance(value, int | float):
        return f"{evidence.name}: {format_gpu_s(float(value))}"
    if isinstance(value, str):
        return f"{evidence.name}: {value}"
    number = f"{value:g}" if isinstance(value, float) else f"{value}"
    return (
        f"{evidence.name}: {number}"
        if evidence.unit == "GPUs"
        else f"{evidence.name}: {number} ({evidence.unit})"
    )


def verdict_words(verdict: Verdict) -> str:
    """One guard's answer on one line."""
    if verdict.allowed and verdict.code == Code.OK:
        return f"{verdict.guard}: ok ({_number(verdict.value)} {verdict.unit}, limit {_number(verdict.threshold)})"
    answer = "waived" if verdict.allowed else "refused"
    why = code_words(verdict.code, verdict.value, verdict.threshold)
    return f"{verdict.guard}: {answer}, {why} ({_number(verdict.value)} {verdict.unit}, limit {_number(verdict.threshold)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def proposal_words(proposal: Proposal, _decision: Decision | None = None) -> str:
    """Why a proposal was made, and why it was taken or refused, on one line."""
    facts = {each.name: each for each in proposal.evidence}
    if proposal.kind == "admit":
        nodes = len({slot.node for slot in proposal.slots})
        words = f"start on {len(proposal.slots)} GPU(s) of {nodes} node(s)"
        if "waited" in facts:
            words += f" after {format_duration(float(facts['waited'].value))}"
        if proposal.action == "backfill":
            words += ", in the gap before a reservation; it gives way when the reserved gang can land"
    elif proposal.kind == "reserve":
        words = f"no room yet: hold {facts['gpus'].value} GPUs, planned to start in {format_duration(float(facts['planned_start_in'].value))}"
    else:
        names = ", ".join(victim.workload for victim in proposal.victims[:5])
        words = f"evict backfilled {names} ({format_gpu_s(proposal.cost_gpu_s)} lost) so that {proposal.workload} can start"
    refused = [verdict for verdict in proposal.verdicts if not verdict.allowed]
    if not refused:
        return words
    return words + "; refused: " + "; ".join(code_words(v.code, v.value, v.threshold) for v in refused)


def explain_proposal(proposal: Proposal, decision: Decision) -> list[str]:
    """The whole case of one proposal: what, for whom, gain and price, evidence, every guard."""
    state = "taken" if proposal.accepted and not decision.halted else "refused"
    lines = [
        f"{proposal.id}: {state} at {format_duration(decision.now_s)} (tick {decision.tick})",
        f"  {proposal.action}: {proposal_words(proposal)}",
        f"  workload {proposal.workload} (restart {proposal.incarnation}) of tenant {proposal.tenant}, queue {proposal.queue}",
        f"  benefit {format_gpu_s(proposal.benefit_gpu_s)}, cost {format_gpu_s(proposal.cost_gpu_s)}",
    ]
    if decision.halted:
        lines.append(f"  everything was held: {decision.halted}")
    if proposal.slots:
        by_node = Counter(slot.node for slot in proposal.slots)
        lines.append("  place: " + ", ".join(f"{node} x {count}" for node, count in sorted(by_node.items())[:12])
                     + (f" and {len(by_node) - 12} more nodes" if len(by_node) > 12 else ""))  # fmt: skip
    lines += [f"  score {evidence_words(term)}" for term in proposal.score_terms]
    lines += [
        f"  victim {v.workload}: {v.gpus} GPUs, {format_gpu_s(v.lost_gpu_s)} lost" for v in proposal.victims
    ]
    lines += [f"  {evidence_words(each)}" for each in proposal.evidence]
    lines += [f"  guard {verdict_words(verdict)}" for verdict in proposal.verdicts]
    return lines


def explain_wait(workload: str, observation: Observation, decision: Decision) -> list[str]:
    """Why one workload waits at this tick (or that it does not), with its place in the order."""
    work = observation.snapshot.workloads
    found = np.flatnonzero(work.id == workload)
    if not len(found):
        return [f"{workload}: not in the cluster at {format_duration(observation.now_s)}"]
    row = int(found[0])
    state = State(int(work.state[row])).name.lower()
    tenant = observation.snapshot.names.tenants[int(work.tenant[row])]
    lines = [f"{workload}: {state}, {int(work.gpus[row])} GPUs, {SLO_CLASS_NAMES[int(work.slo_class[row])]}, tenant {tenant}, "
             f"submitted {format_duration(float(work.submit_s[row]))} after the start of the run"]  # fmt: skip
    lines += [f"  {proposal_words(each)}" for each in decision.plan.proposals if each.workload == workload]
    refusals = decision.plan.refusals
    place = np.flatnonzero(refusals.workload == row)
    if len(place):
        at = int(place[0])
        code = refusals.codes[int(refusals.code[at])]
        waited = format_duration(observation.now_s - float(work.submit_s[row]))
        lines.append(
            f"  waits since {waited}, place {at + 1} of {len(refusals.workload)} in the order of service"
        )
        lines.append(
            f"  {code}: {code_words(code, float(refusals.value[at]), float(refusals.threshold[at]))}"
        )
    for held in decision.plan.reservations:
        if held.workload == workload:
            start = format_duration(max(held.start_s - observation.now_s, 0.0))
            lines.append(
                f"  holds a reservation of {held.gpus} GPUs on {', '.join(held.nodes[:8])}: planned start in {start}"
            )
        elif len(place) and refusals.codes[int(refusals.code[int(place[0])])] == Code.RESERVED:
            lines.append(f"  room is held for {held.workload} ({held.gpus} GPUs)")
    return lines


def explain_decision(decision: Decision) -> list[str]:
    """What one tick did, and why the rest waits, by reason."""
    lines = [f"tick {decision.tick} at {format_duration(decision.now_s)}: "
             f"{sum(p.accepted for p in decision.plan.proposals)} of {len(decision.plan.proposals)} proposals accepted"]  # fmt: skip
    if decision.halted:
        lines.append(f"  everything was held: {decision.halted}")
    lines += [f"  {'+' if p.accepted else '-'} {p.id}: {proposal_words(p)}" for p in decision.plan.proposals]
    refusals = decision.plan.refusals
    for code, count in Counter(refusals.code.tolist()).most_common():
        first = int(np.flatnonzero(refusals.code == code)[0])
        words = code_words(
            refusals.codes[code], float(refusals.value[first]), float(refusals.threshold[first])
        )
        lines.append(f"  {count} workload(s) wait, {refusals.codes[code]}: first in order: {words}")
    for held in decision.plan.reservations:
        lines.append(
            f"  reservation: {held.workload}, {held.gpus} GPUs, promised {format_duration(held.promised_s)} after the start of the run"
        )
    if not decision.plan.proposals and not len(refusals.code):
        lines.append("  nothing waits")
    return lines
