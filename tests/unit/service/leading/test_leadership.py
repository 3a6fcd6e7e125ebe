"""What a leader sends: nothing whose term is over, or that the next leader could not know."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Cause, Instruction, Outcome, OutcomeKind
from autopilot.memory_store import InMemoryStore
from autopilot.service.leading.leadership import ClusterLeadership, FencedActuator
from autopilot.service.leading.memory import ClusterMemory
from tests.hostile.api_ports import Elected, People
from tests.kits.acting_kit import evict
from tests.kits.apiserver_kit import small_cluster
from tests.kits.lead_kit import NAME, InProcess, with_namespace

ORDER = Instruction("1/p/w", Subject(SubjectKind.WORKLOAD, "w", "u", 0), evict(), 60.0, 1, "p")


class Carries:
    """An actuator that carries out everything."""

    name = "carries"

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Done."""
        return Outcome(instruction.id, OutcomeKind.DONE, now_s)


@pytest.mark.parametrize(
    ("store", "leads", "kind", "cause"),
    [
        ("", True, OutcomeKind.DONE, Cause.NONE),
        ("request lost", True, OutcomeKind.CONFLICT, Cause.SERVER),
        ("answer lost", True, OutcomeKind.CONFLICT, Cause.SERVER),
        ("", False, OutcomeKind.CONFLICT, Cause.EPOCH),
        ("request lost", False, OutcomeKind.CONFLICT, Cause.EPOCH),
    ],
)
def test_what_is_not_sent_is_no_attempt(store: str, leads: bool, kind: OutcomeKind, cause: Cause) -> None:
    """It is decided again. As a failure it would count, and five of them in an outage would pause the controller."""
    api, elected, people = InProcess(with_namespace(small_cluster())), Elected(1), People()
    memory = ClusterMemory(api, NAME.namespace, InMemoryStore(), lambda: 0.0)
    ports: Any = (elected, memory, people)
    leadership = ClusterLeadership(*ports)
    assert leadership.fence() == 1
    api.fate = lambda method, _path: store if method != "GET" else ""
    memory.save(ControllerMemory(tick=1, fence=1))
    elected.leads = leads
    outcome = FencedActuator(Carries(), leadership).apply(ORDER, 0.0)
    assert (outcome.kind, outcome.cause) == (kind, cause)
    assert ("not sent: " in outcome.reason) == (kind != OutcomeKind.DONE)
