"""Tenants without Kueue in the playground: their Jobs are suspended, and start where somebody resumes them."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.levers.stopped import mark_for
from autopilot.contract.annotations import MANAGE
from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import State
from autopilot.core.model.stops import StopReason
from autopilot.playground.stage import Stage
from tests.kits.playground_kit import found_until, job, person, stage_of

JOBS = "jobs.batch"
HOST = "kubernetes.io/hostname"


class Apart:
    """A quickstart whose tenant `vision` has no queue."""

    def __init__(self) -> None:
        self.stage: Stage = stage_of(acts=True, without=("vision",))
        self.client = person(self.stage)
        self.run(1.0)

    def run(self, for_s: float) -> None:
        """Let time pass; API and world agree at every instant."""
        assert found_until(self.stage, self.stage.clock.virtual_s + for_s) == []

    def create(self, name: str, *, suspend: bool = True, **more: Any) -> int:
        """A Job of a person; its row in the world."""
        made = job(name, **more)
        made["spec"]["suspend"] = suspend
        self.client.create(JOBS, made)
        self.run(0.0)
        return self.stage.cluster.jobs.id.index(f"vision/{name}")

    def patch(self, name: str, *, suspend: bool, **selector: str) -> None:
        """What a person or the autopilot writes."""
        template = {"template": {"spec": {"nodeSelector": selector}}} if selector else {}
        self.client.patch(JOBS, "vision", name, {"spec": {"suspend": suspend, **template}})
        self.run(0.0)

    def lose(self, node: str) -> None:
        """A node goes down now."""
        row = self.stage.projection.nodes.row[node]

        def fail(now_s: float) -> None:
            self.stage.cluster.fail_node(row, now_s)

        self.stage.engine.at(self.stage.engine.now_s, fail)

    def stored(self, name: str) -> dict[str, Any]:
        """The Job."""
        return self.client.get(JOBS, "vision", name) or {}

    def state(self, row: int) -> State:
        """Of the work."""
        return State(self.stage.cluster.state[row])

    def hosts(self, row: int) -> set[str]:
        """The nodes on which it runs."""
        hardware, held = self.stage.cluster.hardware, self.stage.cluster.held[row]
        return {self.stage.projection.nodes.names[hardware.node_of[gpu]] for gpu in held.gpus} if held else set()


@pytest.fixture
def apart() -> Apart:
    """At 1 s."""
    return Apart()


def test_work_of_such_a_tenant_is_left_to_the_autopilot(apart: Apart) -> None:
    """Suspended since its creation, with the label, and without queue, Workload and pods; other tenants have queues."""
    apart.run(600.0)
    found = apart.client.list(JOBS, "vision")
    assert found
    assert all(each["spec"]["suspend"] for each in found)
    assert {each["metadata"]["labels"].get(MANAGE) for each in found} == {"true"}
    assert not [key for each in found for key in each["metadata"]["labels"] if "kueue" in key]
    assert apart.client.list("workloads.kueue.x-k8s.io", "vision") == []
    assert apart.client.list("pods", "vision") == []
    spaces = {each["metadata"]["namespace"] for each in apart.client.list("localqueues.kueue.x-k8s.io")}
    assert spaces
    assert "vision" not in spaces


def test_it_starts_where_its_template_selects_and_ends(apart: Apart) -> None:
    """Resumed with a place in one write, the gang is bound whole, without labels of Kueue."""
    row = apart.create("mine", pods=2)
    assert apart.state(row) == State.PENDING
    apart.patch("mine", suspend=False, **{HOST: "default-002"})
    assert apart.hosts(row) == {"default-002"}
    pods = apart.client.list("pods", "vision")
    assert [each["spec"]["nodeName"] for each in pods] == ["default-002"] * 2
    assert not [key for each in pods for key in each["metadata"]["labels"] if "kueue" in key]
    conditions = {each["type"]: each["status"] for each in apart.stored("mine")["status"]["conditions"]}
    assert conditions["Suspended"] == "False"
    apart.run(900.0)
    assert apart.state(row) == State.SUCCEEDED
    assert apart.stored("mine")["status"]["succeeded"] == 2


def test_a_job_that_is_not_suspended_starts_by_itself(apart: Apart) -> None:
    """No queue holds it back, only room does."""
    first = apart.create("first", suspend=False, gpus=8)
    assert apart.state(first) in {State.STARTING, State.RUNNING}
    (host,) = apart.hosts(first)
    second = apart.create("second", gpus=8)
    apart.patch("second", suspend=False, **{HOST: host})
    (pod,) = [each for each in apart.client.list("pods", "vision") if each["metadata"]["name"].startswith("second")]
    assert pod["status"]["conditions"][0]["reason"] == "Unschedulable"
    apart.run(700.0)
    assert apart.hosts(second) == {host}


def test_a_job_that_is_suspended_stops_and_may_start_elsewhere(apart: Apart) -> None:
    """Its pods leave with their grace; the next place is that of the next write."""
    row = apart.create("mine", gpus=8)
    apart.patch("mine", suspend=False, **{HOST: "default-000"})
    apart.run(60.0)
    apart.patch("mine", suspend=True)
    apart.run(120.0)
    assert apart.state(row) == State.PENDING
    assert apart.client.list("pods", "vision") == []
    apart.patch("mine", suspend=False, **{HOST: "default-001"})
    assert apart.hosts(row) == {"default-001"}


@pytest.mark.parametrize(("reason", "moves"), [("move", 1), ("preempt", 0)])
def test_a_suspension_for_a_move_counts_as_a_migration(apart: Apart, reason: str, moves: int) -> None:
    """As in a simulation, by the mark of the stop."""
    row = apart.create("mine", gpus=8)
    apart.patch("mine", suspend=False, **{HOST: "default-000"})
    apart.run(60.0)
    notes = mark_for(apart.stored("mine"), "4/pipeline-a", StopReason(reason))
    apart.client.patch(JOBS, "vision", "mine", {"metadata": {"annotations": notes}, "spec": {"suspend": True}})
    apart.run(120.0)
    assert apart.state(row) == State.PENDING
    accounts = apart.stage.simulation.accounts
    assert (accounts.migrations, accounts.preemptions) == (moves, 1 - moves)


def test_pods_that_are_lost_are_made_again(apart: Apart) -> None:
    """By the Job controller, on the nodes that its template selects: there is no other place while they are down."""
    row = apart.create("mine", gpus=8)
    apart.patch("mine", suspend=False, **{HOST: "default-000"})
    apart.run(60.0)
    apart.lose("default-000")
    apart.run(30.0)
    assert apart.hosts(row) == set()
    assert apart.stored("mine")["spec"]["suspend"] is False
    (pod,) = apart.client.list("pods", "vision")
    assert "nodeName" not in pod["spec"]
    apart.patch("mine", suspend=True)
    assert apart.client.list("pods", "vision") == []
    apart.patch("mine", suspend=False, **{HOST: "default-001"})
    assert apart.hosts(row) == {"default-001"}


@pytest.mark.parametrize(
    ("acts", "tenant", "words"),
    [
        (False, "vision", "add --mode auto"),
        (True, "visions", "has no tenant visions; name one of"),
        (True, "assistants", "has services"),
    ],
)
def test_a_tenant_that_cannot_be_without_kueue_is_refused(acts: bool, tenant: str, words: str) -> None:
    """With what to write instead."""
    with pytest.raises(InputError, match=words):
        stage_of(acts=acts, without=(tenant,))
