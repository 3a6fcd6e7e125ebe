"""What a leader sends: nothing whose term is over, or that the next leader could not know."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Cause, Instruction, Outcome, OutcomeKind
from autopilot.records.memory import InMemoryStore
from autopilot.service.leading.epoch import ClusterEpoch
from autopilot.service.leading.leadership import ClusterLeadership, FencedActuator
from autopilot.service.leading.lease import Terms
from autopilot.service.leading.memory import ClusterMemory
from tests.hostile.api_ports import Elected, People
from tests.kits.acting_kit import evict
from tests.kits.apiserver_kit import small_cluster
from tests.kits.fence_kit import install_fence, set_epoch
from tests.kits.lead_kit import NAME, Candidate, InProcess, with_namespace

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


def test_a_term_goes_above_every_epoch_that_the_cluster_knows() -> None:
    """The Lease and the memory were deleted, or an administrator wrote the Epoch: the next term is above it."""
    server = with_namespace(small_cluster())
    install_fence(server)
    set_epoch(server, 40)
    api = InProcess(server)
    epoch = ClusterEpoch(api, NAME, lambda _seconds: None)
    candidate = Candidate(server, "one", Terms(), known_fence=epoch.known)
    memory, people = ClusterMemory(api, NAME.namespace, InMemoryStore(), lambda: 0.0), People()
    ports: Any = (candidate.elector, memory, people, epoch)
    leadership = ClusterLeadership(*ports)

    def leads() -> int | None:
        candidate.elector.step()
        server.timeline.run_for(1.5)
        return leadership.fence()

    found = [leads() for _ in range(12)]
    assert found[-1] == 41
    assert leadership.leads()
    set_epoch(server, 99)
    problem, _ = leadership.unfenced()
    assert "a later leader with epoch 99" in problem
    assert leads() == 100
    assert epoch.known() == 100
