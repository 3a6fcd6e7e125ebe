"""Decisions and refusals in words, each with its numbers.

Plain functions from records to text: the command line, the page and the report print their results. `proposal_words` is
one line, `explain_decision` the actions and refusals of one tick; the whole case of a proposal is in
autopilot/explain/view.py. The story of one workload: autopilot/explain/story/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import isfinite

import numpy as np

from autopilot.core.model.codes import UNCOVERED
from autopilot.core.model.modes import MODE_UNIT, MODES
from autopilot.core.model.objects import SideEffect, Taken
from autopilot.core.model.records import Code, Decision, Evidence, Loss, Proposal, Slot, Verdict, Victim
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.model.units import counted, format_clock, format_gpu_s, format_moment, number
from autopilot.core.trust import telemetry_guard as telemetry
from autopilot.explain.cases import IN_UNITS, Amount, case_words, fact_words, quantity, with_worst
from autopilot.explain.notes import note_words

_IN_WINDOW = "{value:disruption in the window exceeds|disruptions in the window exceed}"

REASONS: Mapping[Code, str] = {
    Code.CAPACITY: "{value:GPU it may use is|GPUs it may use are} free, it needs {threshold}",
    Code.FRAGMENTED: "{value:GPU is|GPUs are} free, but not in the shape that it needs ({threshold:GPU})",
    Code.TOPOLOGY: "no single domain holds all its members ({threshold:GPU}; the best node has room for {value})",
    Code.MIG_GEOMETRY: "{value:free instance} of its MIG profile, it needs {threshold}",
    Code.RESERVED: "enough GPUs are free, but they are held for a reservation that it would delay; "
    "beside it {value:GPU is|GPUs are} free, where it does not fit ({threshold:GPU})",
    Code.RUNTIME_UNKNOWN: "its run time is unknown and it declares no limit, so it may not start before a reservation",
    Code.LIMIT: "its queue (or one above it) is at its hard limit: {value:GPU} left, it needs {threshold}",
    Code.TOO_WIDE: "it is wider than the whole cluster ({value} of {threshold:GPU})",
    Code.EXCLUDED: "it is left alone: it opted out, or what it declares is not understood and a gap names it",
    Code.GATED: "it was proposed, but {value:guard} held it",
    Code.BOUND: "this tick already made {value:proposal}, the most that policy allows ({threshold})",
    Code.GUARANTEE: "it is protected, so it starts inside guarantees only: "
    "{value:GPU of them is|GPUs of them are} left on the path of its queue, it needs {threshold}",
    Code.FAIRNESS: "blocked by fair share: no other queue is above its share, or its own queue would exceed its own",
    Code.PRIORITY: "no work that could be preempted has a lower priority; "
    "{value:GPU of quota is|GPUs of quota are} free, it needs {threshold}",
    Code.POLICY: "the settings of its queue do not allow it to preempt the work that could be preempted; "
    "{value:GPU of quota is|GPUs of quota are} free, it needs {threshold}",
    Code.PROTECTED: "all work that it could preempt for its {threshold:GPU} is protected",
    Code.DELAY: "it has waited {value:s} of the {threshold:s} before it may preempt",
    Code.QUOTA: "its queue and those that share with it have quota for {value:more GPU}, it needs {threshold}",
    Code.KEPT: "quota is idle, but held for another waiting gang: {value:GPU is|GPUs are} left, it needs {threshold}",
    Code.WORKERS: "it coordinates other workloads that still wait, and starts after them",
    Code.CHECK: "a check outside of the autopilot has not passed it",
    Code.NO_PODS: "its scheduler has admitted it and holds its quota, and its controller has made no pods",
    Code.SUSPENDED: "it is suspended or deactivated, or lacks pods, and waits until its owner lets it continue",
    Code.ORDER: "its queue serves strictly in order, and the gang before it waits",
    Code.MODE_OFF: "the action is switched off",
    Code.MODE_OBSERVE: "the action only observes",
    Code.MODE_RECOMMEND: "the action only recommends; set its mode to approve or auto to let it act",
    Code.NEEDS_APPROVAL: "waiting for approval",
    Code.ON_PAPER: "it counts on GPUs or quota that only a recommendation frees",
    Code.APPROVAL_EXPIRED: "its approval was given {value:s} ago and has expired (it holds for {threshold:s})",
    Code.APPROVAL_COST_ROSE: "its approval does not cover it: what is lost under the approval would be {value:GPU-s}, "
    "more than {threshold:GPU-s}",
    Code.APPROVAL_GREW: "its approval does not cover it: it would take {value} in place of {threshold} (GPUs, or "
    "replicas or nodes)",
    Code.APPROVAL_SIDE_EFFECTS: "its approval does not cover it: waiting work would lose reserved quota, room or its "
    "turn ({value:GPU}); {threshold} were shown, or of another queue",
    Code.APPROVAL_OTHER_WORK: "its approval does not cover it: it would stop work of a class or queue that was not "
    "shown",
    Code.APPROVAL_OTHER_PLAN: "only the very plan that was shown is approved, and the plan is another one now",
    Code.REJECTED: "a person rejected it",
    Code.KILL_SWITCH: "the kill switch is on, or cannot be read",
    Code.PAUSED_BY_PERSON: "a person paused the autopilot {value:s} ago; it goes on when a person resumes it",
    Code.PAUSED: "the autopilot paused itself {value:s} ago (the pause lasts {threshold:s})",
    Code.STALE_INVENTORY: "nodes and GPUs were last seen {value:s} ago (limit {threshold:s})",
    Code.STALE_WORK: "workloads were last seen {value:s} ago (limit {threshold:s})",
    Code.STALE_TELEMETRY: "telemetry is {value:s} old (limit {threshold:s})",
    Code.TELEMETRY_STUCK: "{value} of the {threshold} GPUs or instances that it relies on repeat one number, without "
    "the noise that their counters have; restart the exporter of their nodes",
    Code.TELEMETRY_IMPOSSIBLE: "{value} of the {threshold} GPUs or instances that it relies on report values that no "
    "hardware gives, or that contradict each other; check the exporter of their nodes",
    Code.TELEMETRY_SCALE: "{value} of the {threshold} GPUs or instances that it relies on report percentages where "
    "ratios are due; check the rules that rewrite their metrics",
    Code.TELEMETRY_SWAPPED: "the telemetry of {value} of the {threshold} GPUs or instances that it relies on may be "
    "that of another GPU; compare the UUIDs of the nodes",
    Code.TELEMETRY_OWNER: "placements contradict each other about who holds {value} of the {threshold} GPUs or "
    "instances that it relies on; check the labels of their pods",
    Code.CHANGED: "it is another object now, or asks for something else than when this was decided",
    Code.NOT_NEEDED: "the start that it made room for has room without it by now",
    Code.NODE_UNFIT: "nodes or GPUs of it that are not ready, cordoned or unhealthy: {value}",
    Code.PARTIAL_GANG: "{value:GPU at once is|GPUs at once are} not the whole gang ({threshold})",
    Code.PARTIAL_EVICTION: "a gang leaves whole, or keeps its minimum: {value:GPU} where it must be {threshold}",
    Code.PROTECTED_CLASS: "a victim belongs to a protected class",
    Code.OPTED_OUT: "the workload opted out",
    Code.NOT_PREEMPTIBLE: "a victim is not preemptible",
    Code.UNSCRUBBED: "{value:GPU or MIG instance|GPUs or MIG instances} of its place may come from untrusted work of "
    "another tenant, and its node does not state that they were scrubbed since",
    Code.MIN_RUNTIME: "a victim has run {value:s} (at least {threshold:s} are promised)",
    Code.STOPPED_OFTEN: "a victim was stopped {value:time|times} for other work (at most {threshold}); only contracts "
    "may stop it again",
    Code.DWELL: "the wish has lasted {value:s} (it must last {threshold:s})",
    Code.COOL_DOWN: "a victim was disrupted before; {value:s} of its cool-down are left",
    Code.GIVEN_UP: "its last start in the place of others was given up; {value:s} of its cool-down are left",
    Code.REFUSED: "the cluster refused the last attempt; it is tried again in {value:s}",
    Code.MARGIN: "a gain of {value:GPU-s} does not exceed {threshold:GPU-s} (cost and margin)",
    Code.BUDGET_CLUSTER: _IN_WINDOW + " the cluster's {threshold}",
    Code.BUDGET_TENANT: _IN_WINDOW + " the tenant's {threshold}",
    Code.BUDGET_NODE: _IN_WINDOW + " the node's {threshold}",
    Code.BUDGET_CONCURRENT: "{value:disruption at once exceeds|disruptions at once exceed} {threshold}",
    Code.BUDGET_CHECKPOINT: "the victims' checkpoints take {value:s} to write, and the store has {threshold:s} "
    "within the grace",
    Code.CONTRACT_RATE: "contracts would have taken {value:GPU} for it within the hour, at most {threshold} are "
    "allowed; stop the work by hand if its queue has a guarantee shortfall, or wait",
    Code.BLAST_RADIUS: "it would take {value:GPU} for each that it needs, at most {threshold} are allowed",
    Code.WITHOUT_CHECKPOINT: "{value} of its victims cannot save within the grace, and policy lets only those be "
    "taken that can",
    Code.STORM: "its action is paused: it reversed itself, failed or cut GPUs anew {value} times within an hour "
    "(limit {threshold}); it continues after a time without such an event, or when a person resumes the autopilot",
    Code.CAPPED: "its action may only recommend: what it did realised {value:GPU-s}, and at least {threshold:GPU-s} of "
    "what it promised must be realised; `autopilot lift ACTION` ends that",
    Code.SLO_BURNING: "a victim serves requests at {value} times its latency objective (or that of its tokens), or "
    "does not say how well (limit {threshold})",
    Code.FORECAST_UNKNOWN: "nothing is foreseen",
    Code.FORECAST_STALE: "the forecast was made {value:s} ago (limit {threshold:s})",
    Code.FORECAST_UNPROVEN: "the forecast has {value:outcome} behind it, too few to tell what its promise is "
    "worth (at least {threshold})",
    Code.FORECAST_UNCALIBRATED: "{value:of} of the outcomes were within the forecast's promise, at least "
    "{threshold:of} have to be",
    Code.FORECAST_DRIFTING: "the forecast's model has drifted: its errors are out of their usual range",
    Code.RECUT: "what it needs is being made by a change of MIG geometry, which takes {value:s}",
    Code.RECUT_RATE: "{value:change|changes} of geometry in its pool would have begun within the hour (limit "
    "{threshold})",
    Code.RECUT_RETURN: "the GPU left this geometry or MIG mode {value:s} ago; it does not return to it for "
    "{threshold:s}",
    Code.RECUT_IN_USE: "{value:instance} in use would be destroyed",
    Code.RECUT_ILLEGAL: "the new geometry cannot exist on this GPU",
    Code.RECUT_QUARANTINE: "the last change of this GPU has not ended, or ended badly; release the GPU once its node "
    "is repaired",
    Code.SHARE_CONSENT: "work on a GPU that it would share does not allow that, or not beside another tenant",
    Code.SHARE_COUNT: "{value:workload} would share a GPU, at most {threshold} may",
    Code.SHARE_END: "{value:workload} may be ended by a signal, which may end all clients of the MPS server",
    Code.SHARE_UNKNOWN: "how it would share the GPU is not known: there is no fresh measurement of each of them alone, "
    "or no label proves the mechanism",
    Code.SHARE_MEMORY: "the peaks of memory would fill {value:of} of a GPU (limit {threshold:of})",
    Code.SHARE_LOAD: "the work on a GPU would use {value:of} of it in sum (limit {threshold:of})",
    Code.SHARE_RATE: "work on a GPU would keep {value:of} of its rate alone, at least {threshold:of} have to be kept",
    Code.SHARE_PAIR: "such work has slowed such work there before: with {value:of} it would do so again (limit "
    "{threshold:of})",
    Code.SHARE_APART: "it would get {value:share} of {threshold:GPU}",
    Code.SHARE_IN_USE: "{value:GPU} of the node is in use: only an empty node is turned",
    Code.WAIVED_CONTRACT: "the work started on the condition that it may be preempted, or holds what another queue "
    "is owed",
    Code.OK: "in order",
}
"""The words of each code; `value` and `threshold` are the numbers of its judgement."""

SHOWN_VICTIMS = 5
"""Victims named on one line; the whole case names all."""


def code_words(code: Code, value: float, threshold: float) -> str:
    """A code with its numbers, as a clause."""
    known = number(value) if isfinite(value) else "an unknown number of"
    return REASONS[code].format(value=Amount(known, value), threshold=Amount(number(threshold), threshold))


def evidence_words(evidence: Evidence) -> str:
    """`gpus 16 GPUs` as `gpus: 16`; durations and GPU time readable."""
    value, unit = evidence.value, evidence.unit
    if isinstance(value, str):
        return f"{evidence.name}: {fact_words(evidence)}"
    if unit.partition(" ")[0] in IN_UNITS:
        return f"{evidence.name}: {quantity(float(value), unit)}"
    amount = number(value) if isinstance(value, float) else f"{value}"
    return f"{evidence.name}: {amount}{f' ({unit})' if unit not in {'', 'GPUs'} else ''}"


def verdict_words(verdict: Verdict) -> str:
    """One guard's answer on one line."""
    if verdict.allowed and verdict.code == Code.OK:
        return f"{verdict.guard}: ok ({_measured(verdict)})"
    answer = "waived" if verdict.allowed else _held_words(verdict.code)
    why = code_words(verdict.code, verdict.value, verdict.threshold)
    return f"{verdict.guard}: {answer}, {verdict.code}: {why} ({_measured(verdict)})"


def _measured(verdict: Verdict) -> str:
    """Measured value of a guard and its limit: `3 min since first proposed, at least 10 min`."""
    if verdict.unit == MODE_UNIT:
        return f"mode {MODES[int(verdict.value)]}"
    if verdict.unit == telemetry.UNIT:
        return f"{number(verdict.value)} of {number(verdict.threshold)} {verdict.unit}"
    bound = "at least" if verdict.at_least else "at most"
    limit = IN_UNITS.get(verdict.unit.partition(" ")[0], number)(verdict.threshold)
    return f"{quantity(verdict.value, verdict.unit)}, {bound} {limit}"


def _held_words(code: Code) -> str:
    """Name of the answer of a verdict against a proposal."""
    return "recommended only" if code in _RECOMMENDS else "refused"


def where(slots: Sequence[Slot], profile: str = "") -> str:
    """`8 GPUs of 1 node`; shares and instances by their name, instances with their `profile` if it is known."""
    nodes = counted(len({slot.node for slot in slots}), "node")
    if any(slot.instance for slot in slots):
        return f"{counted(len(slots), 'MIG instance')}{profile and ' '}{profile} of {nodes}"
    if any(slot.milli < GPU_MILLI for slot in slots):
        gpus = sum(slot.milli for slot in slots) / GPU_MILLI
        return f"{counted(len(slots), 'share')} ({counted(gpus, 'GPU')}) of {nodes}"
    return f"{counted(len(slots), 'GPU')} of {nodes}"


def by_node(slots: Sequence[Slot], shown: int = 12) -> str:
    """`node-0 x 8, node-1 x 8 and 3 more nodes`."""
    counts = sorted(Counter(slot.node for slot in slots).items())
    words = ", ".join(f"{node} x {count}" for node, count in counts[:shown])
    return words + (f" and {counted(len(counts) - shown, 'more node')}" if len(counts) > shown else "")


def victim_words(victim: Victim) -> str:
    """One victim by name, with `how_words`."""
    return f"{victim.workload}: {how_words(victim)}"


def how_words(victim: Victim) -> str:
    """The displacement of a victim, its loss, and the words "by contract" if one applies."""
    if victim.how == "shrink":
        how = f"shrinks by {victim.gpus} to {counted(len(victim.keeps), 'GPU')} ({by_node(victim.keeps, 4)})"
    elif victim.how == "move":
        how = f"moves to {by_node(victim.keeps, 4)}"
    else:
        how = f"evicted from {counted(victim.gpus, 'GPU')}"
    owed = ", by contract" if victim.contract else ""
    return f"{how}, {expected_loss_words(victim.lost_gpu_s, victim.worst_gpu_s)}{owed}"


def expected_loss_words(lost_gpu_s: float, worst_gpu_s: float) -> str:
    """`expected loss 6.7 GPU-min, worst case 2.2 GPU-h`."""
    return f"expected loss {with_worst(lost_gpu_s, worst_gpu_s)}"


LOSES: Mapping[Taken, str] = {
    Taken.QUOTA: "reserved quota",
    Taken.ROOM: "reserved room",
    Taken.TURN: "turn",
}
"""Losses of waiting work to a start."""

_TAKES: Mapping[Taken, str] = {
    Taken.QUOTA: "until it has started it takes the reserved quota of waiting work",
    Taken.ROOM: "the guarantee of its queue takes precedence over room that is reserved for",
    Taken.TURN: "once approved it comes before starts that wait for approval",
}


def side_effect_words(proposal: Proposal, *, of_turns: bool = True) -> list[str]:
    """Losses of waiting work to a proposal, a clause for each kind; [] without any.

    Passed starts are many and change often: `explain` names them; with `of_turns`, this names their queues.
    """
    clauses = []
    for what, words in _TAKES.items():
        found = [each for each in proposal.change.side_effects if each.what == what]
        names = [f"{each.workload} ({counted(each.gpus, 'GPU')}, queue {each.queue})" for each in found[:SHOWN_VICTIMS]]
        names += [f"{len(found) - SHOWN_VICTIMS} more"] if len(found) > SHOWN_VICTIMS else []
        if found and what == Taken.TURN:
            queues = sorted({each.queue for each in found})
            clauses.append(
                f"{words} ({'queues' if queues[1:] else 'queue'} {', '.join(queues)})" if of_turns else words
            )
        elif found:
            clauses.append(f"{words}: {', '.join(names)}")
    return clauses


def taken_words(effect: SideEffect) -> str:
    """The loss of one waiting workload: `its reserved quota (16 GPUs)`."""
    return f"its {LOSES[effect.what]} ({counted(effect.gpus, 'GPU')})"


def _first_victims(victims: Sequence[Victim]) -> str:
    """The first victims, and the number of the others."""
    words = "; ".join(victim_words(victim) for victim in victims[:SHOWN_VICTIMS])
    return words + (f"; and {len(victims) - SHOWN_VICTIMS} more" if len(victims) > SHOWN_VICTIMS else "")


def scrub_words(proposal: Proposal) -> list[str]:
    """The hint to scrub what another tenant leaves, as a clause; [] without one."""
    scrub = proposal.change.scrub
    if scrub is None:
        return []
    how = "its engine resets them by making them anew" if scrub.resettable else "its engine cannot reset them"
    return [f"scrub or verify before: up to {scrub.slots} of these had another tenant last, {how}"]


class Answer(StrEnum):
    """Outcome of a proposal."""

    ACCEPTED = "accepted"
    RECOMMENDED = "recommended"  # every guard allows it; the mode only recommends
    NEEDS_APPROVAL = "needs_approval"  # every guard allows it; a person has to approve it
    REFUSED = "refused"


_RECOMMENDS = frozenset({Code.MODE_RECOMMEND, Code.CAPPED, Code.CONTRACT_RATE, Code.ON_PAPER})
_BOUND = frozenset({Code.CAPPED, Code.CONTRACT_RATE})
_APPROVES = _RECOMMENDS | UNCOVERED | {Code.NEEDS_APPROVAL}


def refusing_codes(proposal: Proposal) -> tuple[Code, ...]:
    """Codes of the verdicts against a proposal."""
    return tuple(verdict.code for verdict in proposal.verdicts if not verdict.allowed)


def answer_of(proposal: Proposal, halted: str = "") -> Answer:
    """Outcome of a proposal; `halted` is that of its decision."""
    codes = set(refusing_codes(proposal))
    if halted or (not codes and not proposal.accepted):
        return Answer.REFUSED
    if not codes:
        return Answer.ACCEPTED
    if codes <= _RECOMMENDS or (not codes.isdisjoint(_BOUND) and codes <= _APPROVES):
        return Answer.RECOMMENDED  # nothing capped or beyond a bound takes an approval
    return Answer.NEEDS_APPROVAL if codes <= _APPROVES else Answer.REFUSED


def proposal_words(proposal: Proposal, _decision: Decision | None = None) -> str:
    """One line: the reason for a proposal, and each refusing guard with its reason."""
    words = "; ".join([case_words(proposal, fields_of(proposal)), *side_effect_words(proposal), *scrub_words(proposal)])
    if answer_of(proposal) == Answer.RECOMMENDED:
        held = held_words(proposal)
        return f"{words}; {held}" if held else words
    refused = [verdict for verdict in proposal.verdicts if not verdict.allowed]
    if not refused:
        return words
    if [each.code for each in refused] == [Code.NEEDS_APPROVAL]:
        return f"{words}; waiting for approval"
    return words + "; refused: " + "; ".join(f"{v.code} ({code_words(v.code, v.value, v.threshold)})" for v in refused)


def held_words(proposal: Proposal) -> str:
    """Reason for recommending only, against a mode that allows more; "" if the mode itself holds the proposal."""
    held = next((each for each in proposal.verdicts if each.code in _BOUND | {Code.ON_PAPER}), None)
    if held is None:
        return ""
    if held.code != Code.CAPPED:
        return f"only recommended: {code_words(held.code, held.value, held.threshold)}"
    asked = format_gpu_s(held.threshold)
    return f"only recommended: {quantity(held.value, held.unit)}, at least {asked} are asked for"


def answer_words(answer: Answer) -> str:
    """An answer as it is printed."""
    return "waiting for approval" if answer == Answer.NEEDS_APPROVAL else answer.value


def after_words(proposal: Proposal) -> str:
    """The words ` again` for a restart, and the time of submission; "" if that is not recorded."""
    at_s = next((float(each.value) for each in proposal.evidence if each.name == "submitted"), None)
    if at_s is None:
        return ""
    return f"{' again' if proposal.subject.revision else ''} (submitted at {format_clock(at_s)})"


def fields_of(proposal: Proposal) -> dict[str, str]:
    """Fields for the words of a case."""
    change = proposal.change
    return {
        "where": where(
            proposal.slots, next((str(each.value) for each in proposal.evidence if each.name == "profile"), "")
        ),
        "after": after_words(proposal),
        "taken": counted(sum(victim.gpus for victim in proposal.victims), "GPU"),
        "victims": _first_victims(proposal.victims),
        "workload": proposal.subject.name,
        "tenant": proposal.tenant,
        "replicas": "" if change.replicas is None else counted(change.replicas, "replica"),
    }


def loss_words(loss: Loss) -> str:
    """Real and expected loss of a victim: `lost 0.3 GPU-h (expected 2.4 GPU-h, worst case 16 GPU-h)`."""
    expected = f"expected {with_worst(loss.expected_gpu_s, loss.worst_gpu_s)}"
    if not isfinite(loss.lost_gpu_s):
        return f"lost an unknown amount of work, as its source does not say ({expected})"
    return f"lost {format_gpu_s(loss.lost_gpu_s)} ({expected})"


def explain_decision(decision: Decision) -> list[str]:
    """The actions of one tick, and the waiting rest by reason."""
    answers = [answer_of(each, decision.halted) for each in decision.plan.proposals]
    lines = [f"tick {decision.tick} at {format_clock(decision.now_s)}: {_answers_words(answers)}"]
    if decision.halted:
        lines.append(f"  everything was held: {decision.halted}")
    lines += [f"  {note_words(note)}" for note in decision.notes]
    lines += [
        f"  {answer_words(answer)}: {each.id}: {proposal_words(each)}"
        for answer, each in zip(answers, decision.plan.proposals, strict=True)
    ]
    refusals = decision.plan.refusals
    for code, count in Counter(refusals.code.tolist()).most_common():
        first = int(np.flatnonzero(refusals.code == code)[0])
        words = code_words(refusals.codes[code], float(refusals.value[first]), float(refusals.threshold[first]))
        waits = "workload waits" if count == 1 else "workloads wait"
        lines.append(f"  {count} {waits}, {refusals.codes[code]}: first in order: {words}")
    for held in decision.plan.reservations:
        said = "promised" if held.firm else "planned, not promised,"
        lines.append(
            f"  reservation: {held.workload}, {counted(held.gpus, 'GPU')}, {said} "
            f"{format_moment(held.promised_s, decision.now_s)}"
        )
    if not decision.plan.proposals and not len(refusals.code):
        lines.append("  nothing waits")
    return lines


def _answers_words(answers: Sequence[Answer]) -> str:
    """`4 proposals: 3 accepted, 1 refused`."""
    counts = Counter(answers)
    parts = ", ".join(f"{counts[answer]} {answer_words(answer)}" for answer in Answer if counts[answer])
    return f"{counted(len(answers), 'proposal')}{': ' if parts else ''}{parts}"
