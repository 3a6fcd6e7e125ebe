"""Release a gang of Kueue that waits for our admission gate (annotation `kueue.x-k8s.io/admission-gated-by`).

The gate is set at the creation of the Job, by a template or a policy of the cluster: Kueue does not accept it later.
Only our value is removed, on the Job and on its Workload.
"""

from __future__ import annotations

from actuators.kubernetes.api import Obj
from actuators.kubernetes.changes import GATE, GATED_BY
from actuators.kubernetes.effects import record_of
from actuators.kubernetes.levers.base import Effect, Lever, Progress, Rule, Tools, Waiting, ended_by
from actuators.kubernetes.levers.check_state import KUEUE
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import CONTROLLER, EFFECT
from autopilot.core.model.records import Instruction


def gates_of(found: Obj) -> list[str]:
    """The controllers with a gate on an object."""
    return [name for each in annotation(found, GATED_BY).split(",") if (name := each.strip())]


def suits(_instruction: Instruction, target: Target) -> str:
    """Work of Kueue with our gate."""
    if CONTROLLER in gates_of(target.workload) or CONTROLLER in gates_of(target.job):
        return ""
    return "our gate is not on it"


def step(tools: Tools, effect: Effect, target: Target, now_s: float) -> Progress:  # noqa: ARG001 - as every step
    """Remove our gate from the Job, then from its Workload."""

    def decide(found: Obj) -> Obj | Stop:
        gates = gates_of(found)
        if CONTROLLER not in gates:
            return Stop("our gate is gone", done=True)
        rest = ",".join(name for name in gates if name != CONTROLLER)
        return {"metadata": {"annotations": {**record_of(effect, "opened"), GATED_BY: rest or None}}}

    for ref in (target.first("Job"), target.first("Workload")):
        if ref is None:
            continue
        answer = tools.writer.change(ref, decide, effect.epoch)
        if not answer.ok:
            return ended_by(answer, f"{ref.shown}: remove our gate")
    return Waiting("Kueue admits it")


LEVER = Lever(
    "kueue-gate",
    frozenset({"admit"}),
    "remove our value of the annotation admission-gated-by",
    (
        Rule(KUEUE, "workloads", ("get", "patch"), changes=(EFFECT, GATE)),
        Rule("batch", "jobs", ("get", "patch"), changes=(EFFECT, GATE)),
    ),
    suits,
    step,
)
