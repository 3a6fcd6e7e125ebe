"""Stop a gang of Kueue that is to start again: our AdmissionCheck says Retry, and the quota comes back to us.

No `requeueAfterSeconds` is sent: it would delay the eviction itself. The check says Retry once, and never during an
eviction: Kueue resets the checks at the start of an eviction, so a later Retry would stay for good (`leftover`).
"""

from __future__ import annotations

from actuators.kubernetes.api import Obj, Refusal
from actuators.kubernetes.changes import OUR_STATE
from actuators.kubernetes.levers.base import Effect, Lever, Progress, Rule, Tools, Waiting, ended_by, gone
from actuators.kubernetes.levers.check_state import KUEUE, RETRY, message, our_check, said_by, state_of, stopped_for
from actuators.kubernetes.levers.deactivate import of_pods
from actuators.kubernetes.levers.evicting import after_saving, take_back
from actuators.kubernetes.levers.saving import ASKED
from actuators.kubernetes.objects import Target, holds
from actuators.kubernetes.writing import CHECK_MANAGER, Stop
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.records import Instruction
from autopilot.core.model.verb import asked

STOPS = "Kueue stops it"


def suits(instruction: Instruction, target: Target) -> str:
    """Work of Kueue with our check that continues elsewhere, or starts again for its own sake."""
    operation = instruction.operation
    if not target.workload:
        return "it is not in a queue of Kueue"
    if not our_check(target.workload):
        return "its queue does not have our admission check"
    if of_pods(target.workload):
        return "its Workload belongs to plain pods, which Kueue would delete"
    reason = operation.takes
    if reason is None or not (reason.continues_elsewhere or reason.for_itself):
        return "it does not start again at once"
    return ""


def _stop(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:
    operation, ref = asked(effect.instruction.operation, EvictOperation), target.first("Workload")
    if ref is None:
        return gone("its Workload is gone")
    text = message(effect.epoch, effect.id, stopped_for(operation.reason))

    def decide(found: Obj) -> Obj | Stop:
        check = our_check(found)
        if said_by(check, effect.id) or holds(found, "Evicted") or check.get("state") == RETRY:
            return Stop("it is on its way", done=True)
        if holds(found, "Finished"):
            return Stop("it has ended", refusal=Refusal.TAKEN)
        if not holds(found, "Admitted"):
            if effect.waits_for == STOPS:  # our Retry did it: Kueue resets the check, and reserves its quota anew
                return Stop("it is stopped", done=True)
            return Stop("it is not admitted any more", refusal=Refusal.TAKEN)
        return state_of(RETRY, text, now_s)

    answer = tools.writer.apply_status(ref, decide, CHECK_MANAGER)
    return Waiting(STOPS) if answer.ok else ended_by(answer, f"{ref.shown}: check Retry")


LEVER = Lever(
    "check-retry",
    frozenset({"evict"}),
    "set the AdmissionCheck to Retry; Kueue stops the gang, and the quota returns to the check",
    (
        Rule(KUEUE, "workloads", ("get",)),
        Rule(KUEUE, "workloads/status", ("patch",), changes=(OUR_STATE,)),
        ASKED,
    ),
    suits,
    after_saving(_stop),
    take_back,
)
