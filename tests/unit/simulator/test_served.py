"""The served cluster as a plain object: pace, at-least-once reports, fences, and the messages of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.objects import Slot, Subject, SubjectKind
from autopilot.core.model.records import Instruction, OutcomeKind, Work
from autopilot.core.model.snapshot import State
from autopilot.service.listeners import Listener
from autopilot.simulated.process import serve_world
from simulator.baselines.textbook import fifo_skip
from simulator.running.engine import Engine
from simulator.running.simulation import GPU_MEMORY_MIB
from simulator.serving.client import ServedClient
from simulator.serving.http import cluster_app
from simulator.serving.served import STEP_WALL_S, ServedCluster
from simulator.serving.servers import Servers
from simulator.serving.wire import StateAnswer, decode, encode
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS

SPEED = 10.0


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The wall clock of the cluster."""
    return Clock()


@pytest.fixture
def served(clock: Clock) -> ServedCluster:
    """A small cluster at virtual time 0."""
    return serve_world(build_world(SimulateOptions(scenario="quickstart")), SPEED, "r", clock)[0]


def _reach(served: ServedCluster, clock: Clock, now_s: float) -> None:
    clock.now_s = 100.0 + now_s / SPEED
    while not served.pace():
        pass


def _work(answer: StateAnswer) -> Work:
    work = answer.batches[0].work
    assert work is not None
    return work


def _admit(served: ServedCluster, job: str, gpus: int, fence: int = 1, uid: str | None = None) -> Instruction:
    work, inventory = _work(served.state()), served.state().batches[0].inventory
    assert inventory is not None
    row = work.workloads.id.tolist().index(job)
    used = set(work.placements.gpu.tolist())
    free = [gpu for gpu in range(len(inventory.gpus.uuid)) if gpu not in used][:gpus]
    slots = tuple(
        Slot(str(inventory.nodes.id[inventory.gpus.node[gpu]]), str(inventory.gpus.uuid[gpu])) for gpu in free
    )
    subject = Subject(
        SubjectKind.WORKLOAD, job, uid or str(work.workloads.uid[row]), int(work.workloads.incarnation[row])
    )
    return Instruction(f"admit-{job}", subject, AdmitOperation(slots=slots), 1e9, fence, "p")


def test_time_follows_the_wall_clock_in_steps_and_never_goes_back(served: ServedCluster, clock: Clock) -> None:
    """A process that was late catches up in steps of one second of wall time."""
    assert served.clock().now_s == 0.0
    clock.now_s += 3.5
    assert [served.pace() for _ in range(4)] == [False, False, False, True]
    assert served.clock().now_s == 3.5 * SPEED
    clock.now_s -= 2.0
    assert served.clock().now_s == 3.5 * SPEED
    clock.now_s += 100.0
    served.pace()
    assert served.state().now_s <= (3.5 + 2 * STEP_WALL_S) * SPEED


def test_ended_work_is_reported_until_it_is_confirmed(served: ServedCluster, clock: Clock) -> None:
    """A controller that dies before it has concluded its tick loses nothing."""
    _reach(served, clock, 400.0)
    work = _work(served.state()).workloads
    pending = np.flatnonzero((work.state == State.PENDING) & (work.service < 0) & (work.gpus == 1))
    job = str(work.id[pending[0]])
    assert served.apply(_admit(served, job, 1)).kind == OutcomeKind.DONE
    answer, now_s = served.state(), 400.0
    while not (_work(answer).workloads.state >= State.SUCCEEDED).any():
        now_s += 60.0
        assert now_s < 20_000.0, "the end of the job was never shown"
        _reach(served, clock, now_s)
        answer = served.state()
    for _ in range(3):
        again = _work(served.state()).workloads
        assert again.id[again.state >= State.SUCCEEDED].tolist() == [job]
    after = _work(served.state(seen=answer.mark)).workloads
    assert not (after.state >= State.SUCCEEDED).any()
    assert not (_work(served.state()).workloads.state >= State.SUCCEEDED).any()


def test_an_instruction_acts_once_and_only_for_the_newest_leader(served: ServedCluster, clock: Clock) -> None:
    """A repeated id returns the first outcome; an older fence is a conflict, also for new instructions."""
    _reach(served, clock, 400.0)
    work = _work(served.state()).workloads
    jobs = work.id[(work.state == State.PENDING) & (work.gpus == 1)][:2].tolist()
    first = _admit(served, str(jobs[0]), 1, fence=2)
    assert served.apply(first) == served.apply(first)
    late = served.apply(_admit(served, str(jobs[1]), 1, fence=1))
    assert (late.kind, late.reason) == (OutcomeKind.CONFLICT, "fence 1 is behind 2: another controller leads")
    assert served.apply(_admit(served, str(jobs[1]), 1, fence=2)).kind == OutcomeKind.DONE


def test_a_state_survives_the_wire(served: ServedCluster, clock: Clock) -> None:
    """Every column arrives with its type, shape and values."""
    _reach(served, clock, 900.0)
    answer = served.state()
    arrived = decode(encode(answer), StateAnswer)
    assert (arrived.now_s, arrived.mark, arrived.run) == (900.0, answer.mark, "r")
    for sent, got in (
        (_work(answer).workloads, _work(arrived).workloads),
        (_work(answer).services, _work(arrived).services),
    ):
        for column in fields(sent):
            one, two = getattr(sent, column.name), getattr(got, column.name)
            assert one.dtype == two.dtype, column.name
            assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), column.name


@pytest.mark.parametrize("body", [b"", b"\x00", encode({"id": "x"}), b"\xff" * 100])
def test_a_message_of_another_kind_is_refused(body: bytes) -> None:
    """It is a `ValueError`, whatever the bytes are."""
    with pytest.raises(ValueError, match=r"\S"):
        decode(body, Instruction)


@pytest.fixture
def client(served: ServedCluster) -> Iterator[ServedClient]:
    """A client of it, over HTTP."""
    listener = Listener(cluster_app(served, {}), "127.0.0.1:0", "listen")
    listener.start()
    yield ServedClient(listener.url)
    listener.close()


def test_a_client_reads_time_and_lists_of_one_instant(
    served: ServedCluster, client: ServedClient, clock: Clock
) -> None:
    """The inventory is sent again only when it changed; a cluster that is gone is a gap, and its clock stands still."""
    _reach(served, clock, 400.0)
    assert client.now_s() == 400.0
    first = client.batch(0, "c", 400.0)
    client.conclude()
    _reach(served, clock, 500.0)
    assert client.now_s() == 500.0
    second = client.batch(0, "c", 500.0)
    assert second.collected_s == 500.0
    assert second.inventory is first.inventory
    outcome = client.apply(_admit(served, str(second.work.workloads.id[0]), 1, uid="other"))  # type: ignore[union-attr]
    assert outcome.kind == OutcomeKind.CONFLICT
    client.url = "http://127.0.0.1:1"
    assert client.now_s() == 500.0
    lost = client.batch(0, "c", 500.0)
    assert lost.work is None
    assert "the simulated cluster does not answer" in lost.gaps[0].reason
    assert client.apply(replace(_admit(served, str(second.work.workloads.id[0]), 1), id="z")).retryable  # type: ignore[union-attr]


def test_a_change_wakes_those_who_wait_for_it(served: ServedCluster, clock: Clock) -> None:
    """The answer comes with the change and not after the full wait."""
    before = served.changes(-1, 0.0)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(served.changes(before, 20.0)))
    waiting.start()
    _reach(served, clock, 600.0)
    waiting.join(10.0)
    assert found
    assert found[0] > before


def test_advancing_in_pieces_is_the_same_run() -> None:
    """A paced engine reaches the same state as one that runs through, whatever the steps are."""
    world = build_world(SimulateOptions(scenario="gang-deadlock"))
    ends = []
    for steps in ((1e6,), (*np.arange(7.0, 40_000.0, 333.3).tolist(), 1e6)):
        cluster = Cluster(world.inventory, world.jobs(), PHYSICS["real"], GPU_MEMORY_MIB)
        engine = Engine(cluster, fifo_skip())
        for to_s in steps:
            engine.advance(to_s)
        ends.append(list(cluster.end_s))
    whole = Cluster(world.inventory, world.jobs(), PHYSICS["real"], GPU_MEMORY_MIB)
    Engine(whole, fifo_skip()).run()
    assert ends[0] == ends[1] == list(whole.end_s)


def test_the_servers_count_what_they_served() -> None:
    """Histograms, tokens and successes agree, and latencies are those of the simulation."""
    world = build_world(SimulateOptions(scenario="quickstart"))
    servers = Servers(world.services)
    (source,) = servers.watched.sources()
    from simulator.inference.serving import ServiceSim

    sim = ServiceSim(world.services.deployments[0].serving, source, replicas=3, on_served=servers.on_served("chat"))
    sim.advance(3600.0)
    server = servers._servers["chat"]
    assert int(server.e2e.counts.sum()) == int(server.ttft.counts.sum()) == sim.completed > 100
    assert server.generation_tokens - sim.completed == int(server.itl.counts.sum())
    assert server.ttft.total < server.e2e.total
    servers.load = lambda _name, _now_s: (sim.queue_depth, sim.in_service, 24)
    text = (servers.text("chat", 3600.0) or b"").decode()
    assert f'vllm:request_success_total{{model_name="chat",engine="0",finished_reason="stop"}} {sim.completed}' in text
    assert f'vllm:e2e_request_latency_seconds_bucket{{model_name="chat",engine="0",le="+Inf"}} {sim.completed}' in text
