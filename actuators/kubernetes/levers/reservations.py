"""Take quota from gangs that Kueue has reserved it for and that do not start, where a gang that starts now lacks it.

Kueue reserves quota in an order of its own, and keeps it while a Workload waits for our check. A gang that the decision
puts first could wait behind such reservations forever. They are deactivated, as work that is stopped: nothing of them
runs, and the controller activates them when it starts them. Retry on their check would not do: Kueue reserves for them
again (measured: 0.1 s later) before it looks at work that did not fit.
"""

from __future__ import annotations

from collections import Counter

from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.levers.base import Effect, Tools, Waiting, ended_by
from actuators.kubernetes.levers.check_state import PENDING, our_check
from actuators.kubernetes.levers.deactivate import of_pods
from actuators.kubernetes.levers.stopped import Mark
from actuators.kubernetes.objects import MOST_DIGITS, Target, conditions, holds, moment_s
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import STOPPED

PATIENCE_S = 30.0
"""Time that Kueue has to reserve quota, and that a reservation has to be used, before quota is taken."""
WAITS = "Kueue has not reserved its quota yet"


def make_way(tools: Tools, effect: Effect, target: Target, now_s: float) -> Waiting:
    """Wait for the quota of a gang; after `PATIENCE_S` take reservations until they hold what it asks for."""
    if now_s - max(effect.begun_s, effect.taken_s) < PATIENCE_S:
        return Waiting(WAITS)
    missing, taken = _asked(target.workload), []
    for found in tools.objects.reservations(target.uid):
        if not missing:
            break
        ref = Ref(found.kind, found.namespace, found.name, found.uid)
        read = tools.api.read(ref)
        held = _held(read.body) & missing if read.ok and _idle(read.body, now_s) else Counter[str]()
        if not held:
            continue
        answer = _deactivate(tools, effect, ref, now_s)
        if answer.ok:
            missing -= held
            taken.append(ref.name)
            effect.taken_s = now_s
        elif isinstance(failed := ended_by(answer, f"{ref.shown}: active false"), Waiting) and failed.outage:
            return failed
    return Waiting(f"{WAITS}; that of {', '.join(taken)} was taken for it" if taken else WAITS)


def _deactivate(tools: Tools, effect: Effect, ref: Ref, now_s: float) -> Answer:
    """Set active to false where the reservation still waits for our check."""

    def decide(found: Obj) -> Obj | Stop:
        if not _idle(found, now_s):
            return Stop("its reservation changed meanwhile", refusal=Refusal.TAKEN)
        mark = Mark(found["metadata"]["uid"], effect.id, "quota", returns=True)
        return {"metadata": {"annotations": {STOPPED: mark.text}}, "spec": {"active": False}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    if answer.ok:
        first = effect.instruction.subject.name
        note = f"set active to false on the Workload: {first} starts first, and Kueue held the quota for this work"
        tools.events.say(ref, "QuotaTaken", "Admit", note, now_s, effect=effect.id)
    return answer


def _idle(workload: Obj, now_s: float) -> bool:
    """Whether it has had quota for some time without being let start. Kueue would delete plain pods."""
    reserved = conditions(workload).get("QuotaReserved", {})
    if reserved.get("status") != "True" or holds(workload, "Admitted") or holds(workload, "Finished"):
        return False
    if of_pods(workload) or workload["spec"].get("active", True) is False:
        return False
    return our_check(workload).get("state") == PENDING and now_s - moment_s(reserved) >= PATIENCE_S


def _asked(workload: Obj) -> Counter[str]:
    """Its devices by resource."""
    asked: Counter[str] = Counter()
    for part in (workload.get("spec") or {}).get("podSets") or ():
        for container in part["template"]["spec"].get("containers") or ():
            resources = container.get("resources") or {}
            for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                asked[name] += _devices(name, amount) * int(part.get("count", 1))
    return +asked


def _held(workload: Obj) -> Counter[str]:
    """Devices by resource that its reservation holds."""
    admission = (workload.get("status") or {}).get("admission") or {}
    held: Counter[str] = Counter()
    for part in admission.get("podSetAssignments") or ():
        for name, amount in (part.get("resourceUsage") or {}).items():
            held[name] += _devices(name, amount)
    return +held


def _devices(name: str, amount: object) -> int:
    """The number of an extended resource, such as nvidia.com/gpu; 0 for all others."""
    text = str(amount)
    return int(text) if "/" in name and text.isdecimal() and len(text) <= MOST_DIGITS else 0
