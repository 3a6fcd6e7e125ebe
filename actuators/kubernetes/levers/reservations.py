"""Take quota from gangs with a reservation by Kueue and no start, for a starting gang that lacks it.

Kueue reserves quota in an order of its own, and keeps it while a Workload waits for our check. The first gang of the
decision could wait behind such reservations forever. The decision names the reservations to take. They are deactivated,
like stopped work: nothing of them runs. Retry on their check would not do: Kueue reserves for them again (measured: 0.1
s later) before it looks at work that did not fit.

After the start they are active again (`TakenQuota`). The mark on their Workload names the start, so any process does
that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.levers.base import Effect, Tools, Waiting, ended_by
from actuators.kubernetes.levers.check_state import PENDING, message, our_check, said_by, state_of
from actuators.kubernetes.levers.deactivate import of_pods, our_mark
from actuators.kubernetes.levers.stopped import Mark
from actuators.kubernetes.objects import Target, conditions, holds, moment_s, refs_of
from actuators.kubernetes.writing import CHECK_MANAGER, Stop
from autopilot.contract.annotations import QUOTA, STOPPED
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.objects import SubjectKind

PATIENCE_S = 30.0
"""Time that Kueue has to reserve quota, and that a reservation has to be used, before quota is taken."""
AGAIN_S = 5.0
"""Time for Kueue to reserve the taken quota, before more is taken."""
MOST_SAID = 20
"""Most messages written in one tick."""
SAYS, IN_ITS_QUEUE = "waits", "it waits; `autopilot explain --workload NAME` says for what"
WAITS = "Kueue has not reserved its quota yet"


def make_way(tools: Tools, effect: Effect, target: Target, operation: AdmitOperation, now_s: float) -> Waiting:
    """Wait for the quota of a gang; after `PATIENCE_S` take the reservations that the decision names, one by one."""
    if not operation.quota_from:
        return Waiting(WAITS)
    text = f"it waits for quota; after {PATIENCE_S:.0f} s it takes that of {', '.join(operation.quota_from.values())}"
    _say(tools, target.first("Workload"), effect.epoch, effect.id, text, now_s)
    if now_s < max(effect.begun_s + PATIENCE_S, effect.taken_s + AGAIN_S):
        return Waiting(WAITS)
    for found in tools.objects.reservations(tuple(operation.quota_from)):
        ref = Ref(found.kind, found.namespace, found.name, found.uid)
        answer = _deactivate(tools, effect, ref, now_s)
        if answer.ok:
            effect.taken_s = now_s
            return Waiting(f"{WAITS}; that of {ref.name} was taken for it")
        if isinstance(failed := ended_by(answer, f"{ref.shown}: active false"), Waiting) and failed.outage:
            return failed
    return Waiting(WAITS)


@dataclass(slots=True)
class TakenQuota:
    """Activates the Workloads of the view with quota taken for a start that is over, and says so until then."""

    def run(self, tools: Tools, epoch: int, now_s: float, under_way: Collection[str]) -> None:
        """Look at each: the start is over once the controller does not wait for it any more."""
        for each in list(tools.objects.taken()):
            ref = Ref(each.kind, each.namespace, each.name, each.uid)
            read = tools.api.read(ref)
            mark = _taken(read.body) if read.ok else None
            if mark is None:
                continue
            if mark.id in under_way:
                text = f"its quota was taken for {mark.of}, and it is activated again once that start is over"
                _say(tools, ref, epoch, mark.id, text, now_s)
            elif _give_back(tools, ref, epoch).ok:
                note = f"set active to true on the Workload: the start of {mark.of} is over"
                tools.events.say(ref, "QuotaReturned", "Admit", note, now_s, effect=mark.id)
                _say(tools, ref, epoch, "returned", "it is in its queue again", now_s)


def _taken(workload: Obj) -> Mark | None:
    """Our mark on a Workload deactivated for its quota; None if a person has set `active` since."""
    mark = our_mark(workload)
    taken = mark is not None and mark.of and mark.returns
    return mark if taken and workload["spec"].get("active", True) is False else None


def _give_back(tools: Tools, ref: Ref, epoch: int) -> Answer:
    def decide(found: Obj) -> Obj | Stop:
        if _taken(found) is None:
            return Stop("somebody else wrote it", refusal=Refusal.TAKEN)
        return {"metadata": {"annotations": {STOPPED: None}}, "spec": {"active": True}}

    return tools.writer.change(ref, decide, epoch)


@dataclass(slots=True)
class WaitingChecks:
    """States in the message of our check the awaited approval of a gang, and the starts that take from it."""

    _texts: Mapping[str, str] = field(default_factory=dict)  # by uid of the work
    _said: dict[str, str] = field(default_factory=dict)

    def tell(self, texts: Mapping[str, str]) -> None:
        """The present texts, by uid of the work; work not named any more only waits."""
        self._texts = texts

    def run(self, tools: Tools, epoch: int, now_s: float, _under_way: Collection[str] = ()) -> None:
        """Write changed texts, a few at each tick; refused ones come later."""
        due = [uid for uid in {**self._said, **self._texts} if self._said.get(uid) != self._texts.get(uid)]
        for uid in due[:MOST_SAID]:
            found, text = tools.objects.find(SubjectKind.WORKLOAD.value, uid), self._texts.get(uid)
            ref = Target(uid, found.incarnation, refs_of(found)).first("Workload") if found is not None else None
            if ref is not None and not _say(tools, ref, epoch, SAYS, text or IN_ITS_QUEUE, now_s, over=not text).ok:
                return
            if text is None:
                self._said.pop(uid, None)
            else:
                self._said[uid] = text


def _say(
    tools: Tools, ref: Ref | None, epoch: int, effect: str, text: str, now_s: float, *, over: bool = False
) -> Answer:
    """State the wait in the message of our check while it waits for us; with `over`, only over this effect's text."""
    said = message(epoch, effect, text)

    def decide(found: Obj) -> Obj | Stop:
        check = our_check(found)
        if check.get("state") != PENDING or check.get("message") == said or (over and not said_by(check, effect)):
            return Stop("it is said, or its check changed", done=True)
        return state_of(PENDING, said, now_s)

    return tools.writer.apply_status(ref, decide, CHECK_MANAGER) if ref is not None else Answer()


def _deactivate(tools: Tools, effect: Effect, ref: Ref, now_s: float) -> Answer:
    """Set active to false if the reservation still waits for our check."""
    first = effect.instruction.subject.name

    def decide(found: Obj) -> Obj | Stop:
        if not _idle(found, now_s):
            return Stop("its reservation changed meanwhile", refusal=Refusal.TAKEN)
        mark = Mark(found["metadata"]["uid"], effect.id, QUOTA, returns=True, of=first)
        return {"metadata": {"annotations": {STOPPED: mark.text}}, "spec": {"active": False}}

    answer = tools.writer.change(ref, decide, effect.epoch)
    if answer.ok:
        note = (
            f"set active to false on the Workload: {first} starts first, and Kueue held the quota for this work; "
            "it is activated again once that start is over"
        )
        tools.events.say(ref, "QuotaTaken", "Admit", note, now_s, effect=effect.id)
    return answer


def _idle(workload: Obj, now_s: float) -> bool:
    """True if it has had quota for some time without being let start. Kueue would delete plain pods."""
    reserved = conditions(workload).get("QuotaReserved", {})
    if reserved.get("status") != "True" or holds(workload, "Admitted") or holds(workload, "Finished"):
        return False
    if of_pods(workload) or workload["spec"].get("active", True) is False:
        return False
    return our_check(workload).get("state") == PENDING and now_s - moment_s(reserved) >= PATIENCE_S
