"""Ask work to write a checkpoint before its stop, and wait for its answer.

The request is an annotation on the pods, read by a trainer through a downward-API volume. The kubelet refreshes such
files about once a minute, so with less than `LEAST_S` of grace the request also goes to the port named by the pods.
Work without such a port gets SIGTERM and the grace of its pods. The answer is an annotation or a metric.
"""

from __future__ import annotations

import json

from actuators.kubernetes.api import Answer, Api, Obj, Ref, Refusal, unread
from actuators.kubernetes.effects import fields_of, id_in
from actuators.kubernetes.hook import declares_hook
from actuators.kubernetes.levers.base import Effect, Ended, Rule, Tools, Waiting, ended_by
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import Stop, each
from autopilot.contract import PREFIX
from autopilot.contract.annotations import CHECKPOINT_ACK, CHECKPOINT_REQUEST, HEARTBEAT, HEARTBEAT_OLD_S
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import Save
from autopilot.core.model.units import parse_duration_s

ASKED = Rule("", "pods", ("get", "patch"), changes=(CHECKPOINT_REQUEST, CHECKPOINT_ACK))
"""The right to ask pods for a checkpoint."""
LEAST_S = 180.0
"""Least grace for a request by annotation: the kubelet's refresh of downward-API files, with room to write."""
TERM_S = 30.0
"""`terminationGracePeriodSeconds` of a pod by default."""
ON_REQUEST, WRITE = PREFIX + "checkpoint-on-request", PREFIX + "checkpoint-write-s"


def save_first(tools: Tools, effect: Effect, target: Target, now_s: float) -> Waiting | Ended | None:
    """The awaited event, or the reason against the stop; None: the work may be stopped now."""
    operation = effect.instruction.operation
    if operation.takes is None or operation.save == Save.SKIP:
        return None
    must = operation.save == Save.MUST
    pods = running_pods(tools.api, target)
    if isinstance(pods, Answer):
        return ended_by(pods, "its pods")  # their saving is unknown
    if not pods:
        return None
    if _declared(target, pods, ON_REQUEST) != "true":
        return declined("it does not save on request, and must not lose progress") if must else None
    silent = _silent(tools, pods, now_s)
    if silent:
        return declined(f"{silent}, and it must not lose progress") if must else None
    by_hook = operation.grace_s < LEAST_S
    if by_hook and not all(declares_hook(pod) for pod in pods):
        return _by_signal(target, pods, operation.grace_s) if must else None
    asked = {pod["metadata"]["uid"]: _request(pod, effect.id) for pod in pods}
    if any(_acknowledges(pod, effect.id) for pod in pods) or tools.reports.acknowledged(effect.id, _names(pods)):
        return None
    deadline_s = min((at for at in asked.values() if at is not None), default=now_s + operation.grace_s)
    if now_s >= deadline_s:
        late = f"it has not reported a checkpoint within {operation.grace_s:g} s"
        if not must:
            return None
        forget(tools, effect, target)
        return declined(f"{late}, and must not lose progress")
    missing = [pod for pod in pods if asked[pod["metadata"]["uid"]] is None]
    failed = _ask(tools, effect, missing, deadline_s)
    if not failed and by_hook:
        failed = _call(tools, effect, pods, deadline_s)
    if failed:
        if not must and (operation.takes.by_contract or operation.takes.for_itself):
            return None  # it is stopped in any case, with SIGTERM and the grace of its pods
        forget(tools, effect, target)
        why = f"it cannot be asked for a checkpoint: {failed}; it keeps its place and counts as not saving"
        return Ended(OutcomeKind.DECLINED, why, cause=Cause.UNASKED)
    return Waiting(f"it was asked for a checkpoint and has {deadline_s - now_s:.0f} s")


def declined(why: str) -> Ended:
    """The work keeps its place."""
    return Ended(OutcomeKind.DECLINED, why, cause=Cause.UNSAVED)


def running_pods(api: Api, target: Target) -> list[Obj] | Answer:
    """The pods of the target that run now and do not stop yet; the failed request if one is unreadable."""
    answers = each(target.of("Pod"), api.read)
    failed = unread(answers)
    if failed is not None:
        return failed
    return [
        answer.body
        for answer in answers
        if answer.ok
        and answer.body.get("status", {}).get("phase") == "Running"
        and not answer.body["metadata"].get("deletionTimestamp")
    ]


def forget(tools: Tools, effect: Effect, target: Target) -> None:
    """Take our request off the pods, as far as that is possible."""

    def decide(found: Obj) -> Obj | Stop:
        if _request(found, effect.id) is None:
            return Stop("there is no request of this instruction", done=True)
        return {"metadata": {"annotations": {CHECKPOINT_REQUEST: None}}}

    each(target.of("Pod"), lambda ref: tools.writer.change(ref, decide, effect.epoch))


def _names(pods: list[Obj]) -> set[tuple[str, str]]:
    """Namespace and name of each pod."""
    return {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods}


def _silent(tools: Tools, pods: list[Obj], now_s: float) -> str:
    """Problem of a pod with an old heartbeat: it makes no progress, and answers no request. "" for none.

    A pod that never reported progress is not judged.
    """
    reported = tools.reports.heartbeats_s(_names(pods))
    for pod in pods:
        meta = pod["metadata"]
        beats = [reported.get((meta["namespace"], meta["name"])), _number(annotation(pod, HEARTBEAT))]
        known = [each for each in beats if each is not None]
        if known and now_s - max(known) > HEARTBEAT_OLD_S:
            return f"the last heartbeat of pod {meta['name']} is {now_s - max(known):.0f} s old"
    return ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _call(tools: Tools, effect: Effect, pods: list[Obj], deadline_s: float) -> str:
    """Send the request to the port of each pod, once; returns the first failure, "" for none."""
    calls = {pod["metadata"]["uid"]: pod for pod in pods if f"called {pod['metadata']['uid']}" not in effect.said}
    failures = each(calls.values(), lambda pod: tools.hooks.ask(pod, effect.id, deadline_s))
    effect.said.update(f"called {uid}" for uid, failed in zip(calls, failures, strict=True) if not failed)
    return next((failed for failed in failures if failed), "")


def _ask(tools: Tools, effect: Effect, pods: list[Obj], deadline_s: float) -> str:
    """Write the request to pods; returns the first failure, "" for none."""
    text = json.dumps({"id": effect.id, "deadline": round(deadline_s, 3)})

    def ask(pod: Obj) -> str:
        meta = pod["metadata"]
        ref = Ref("Pod", meta["namespace"], meta["name"], meta["uid"])
        change = {"metadata": {"annotations": {CHECKPOINT_REQUEST: text, CHECKPOINT_ACK: None}}}
        answer = tools.writer.change(ref, lambda _: change, effect.epoch)
        return "" if answer.ok or answer.refusal in {Refusal.GONE, Refusal.OTHER_OBJECT} else answer.message

    return next((failed for failed in each(pods, ask) if failed), "")


def _by_signal(target: Target, pods: list[Obj], grace_s: float) -> Ended | None:
    """None if SIGTERM alone is enough: its pods have the declared time for a checkpoint. Otherwise the end."""
    term_s = min(float(pod["spec"].get("terminationGracePeriodSeconds", TERM_S)) for pod in pods)
    declared = _declared(target, pods, WRITE)
    try:
        write_s = parse_duration_s(declared) if declared else None
    except ValueError:
        write_s = None
    if write_s is not None and write_s <= term_s:
        return None
    needs = "does not declare how long a checkpoint takes" if write_s is None else f"needs {write_s:g} s to save"
    text = f"it {needs}, its pods get {term_s:g} s after SIGTERM, and {grace_s:g} s are too short for a request"
    return declined(text)


def _declared(target: Target, pods: list[Obj], key: str) -> str:
    """A declaration of the work: on its Job, its Workload, or its pods."""
    return next((text for found in (target.job, target.workload, *pods) if (text := annotation(found, key))), "")


def _request(pod: Obj, effect: str) -> float | None:
    """The deadline of the request of this instruction on a pod; None: no such request."""
    record = fields_of(annotation(pod, CHECKPOINT_REQUEST))
    at_s = record.get("deadline")
    return float(at_s) if record.get("id") == effect and isinstance(at_s, int | float) else None


def _acknowledges(pod: Obj, effect: str) -> bool:
    return id_in(annotation(pod, CHECKPOINT_ACK)) == effect
