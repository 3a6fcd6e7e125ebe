"""Write the golden decisions anew: `python -m tests.golden.refresh`; then read the difference before committing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation, Plan, no_refusals
from autopilot.explain.cases import CASES
from autopilot.explain.notes import NOTES, note_words
from autopilot.explain.proposals import proposal_words
from autopilot.explain.view import explain_proposal, view_of
from tests.golden.explanation_scenes import Key, proposal_for
from tests.golden.note_scenes import note_for
from tests.golden.scenes import SCENES
from tests.kits.core_world import decide
from tests.kits.demand_world import LEARNED

FOLDER = Path(__file__).parent
MEMORY = ControllerMemory(replicas=ReplicasMemory(services=LEARNED))


def in_words(observation: Observation, step: Step) -> dict[str, Any]:
    """A decision as plain values: what was proposed and answered, who waits and why, what is set in motion."""
    plan, ids = step.decision.plan, observation.snapshot.workloads.id
    waiting = zip(plan.refusals.workload, plan.refusals.code, plan.refusals.value, plan.refusals.threshold, strict=True)
    return {
        "halted": step.decision.halted,
        "proposals": [
            {
                "action": p.action,
                "kind": p.kind,
                "reason": p.reason,
                "words": proposal_words(p),
                "workload": p.subject.name,
                "accepted": p.accepted,
                "gpus": [slot.instance or slot.gpu for slot in p.slots],
                "victims": [v.workload for v in p.victims],
                "refused": sorted(str(v.code) for v in p.verdicts if not v.allowed),
                "waived": sorted(v.guard for v in p.verdicts if v.code == "waived_contract"),
            }
            for p in plan.proposals
        ],
        "waits": {
            str(ids[row]): [str(plan.refusals.codes[code]), None if np.isnan(value) else float(value), float(threshold)]
            for row, code, value, threshold in waiting
        },
        "reservations": [
            {
                "workload": r.workload,
                "start_s": round(r.start_s, 6),
                "promised_s": round(r.promised_s, 6),
                "nodes": list(r.nodes),
            }
            for r in plan.reservations
        ],
        "instructions": [
            {
                "kind": i.kind,
                "workload": i.subject.name,
                "backfill": isinstance(i.operation, AdmitOperation) and i.operation.backfill,
                "reason": i.operation.takes or "",
            }
            for i in step.instructions
        ],
    }


def text_of(scene: tuple[Any, Policy]) -> str:
    """The decision of one scene, as its file holds it."""
    make, policy = scene
    observation = make()
    return json.dumps(in_words(observation, decide(observation, policy, MEMORY)), indent=1) + "\n"


def explanation_of(key: Key) -> list[str]:
    """The words of one case, and why its victims leave by contract where they do."""
    proposal = proposal_for(key)
    case = explain_proposal(view_of(proposal, Decision(0, 0.0, Plan((), no_refusals(), (), ()))))
    return [proposal_words(proposal), *(line.strip() for line in case if line.startswith("  by contract"))]


def main() -> None:
    """Write every file."""
    (FOLDER / "words").mkdir(exist_ok=True)
    texts = {" ".join(key): explanation_of(key) for key in sorted(CASES)}
    (FOLDER / "words" / "explanations.json").write_text(json.dumps(texts, indent=1) + "\n", encoding="utf-8")
    notes = {code: note_words(note_for(code)) for code in sorted(NOTES)}
    (FOLDER / "words" / "notes.json").write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
    for name, scene in SCENES.items():
        (FOLDER / f"{name}.json").write_text(text_of(scene), encoding="utf-8")
        print(f"wrote {name}.json")  # noqa: T201


if __name__ == "__main__":
    main()
