"""Memory and commands in ConfigMaps: what the next leader takes over, and what an earlier one can no longer write."""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apiserver.server import Server
from apiserver.users import ADMIN
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.halt import Failure, HaltMemory
from autopilot.core.model.memory.people import PeopleMemory
from autopilot.core.model.memory.trust import Touched
from autopilot.core.model.records import Command, CommandKind, Reservation, Seen
from autopilot.records.memory import FileMemoryStore, InMemoryStore
from autopilot.service.leading import inbox as inbox_module
from autopilot.service.leading import memory as memory_module
from autopilot.service.leading.inbox import NAME as INBOX
from autopilot.service.leading.inbox import ClusterInbox
from autopilot.service.leading.memory import INDEX, ClusterMemory
from tests.kits.apiserver_kit import small_cluster
from tests.kits.lead_kit import NAME, InProcess, with_namespace

FAILED = (Failure(1.0, "u", "t"),)
MEMORY = ControllerMemory(
    tick=7, now_s=100.0, fence=3, people=PeopleMemory(last_sequence=4), halt=HaltMemory(paused_since_s=0.0)
)


@pytest.fixture
def server() -> Server:
    """A cluster with the namespace of the service."""
    return with_namespace(small_cluster())


SEEN = Seen("preempt", "q", "w", 0, "plan", False, True, 8.0, 8.0, 100.0, ("q",), ("batch",))


def store(server: Server, disk: Path | None = None) -> tuple[ClusterMemory, InProcess]:
    """A memory in the cluster, and the requests that it sends."""
    api = InProcess(server)
    local = FileMemoryStore(disk) if disk is not None else InMemoryStore()
    return ClusterMemory(api, NAME.namespace, local, lambda: server.timeline.now_s), api


def large(seed: int = 1, workloads: int = 60_000) -> ControllerMemory:
    """A memory that does not fit into one ConfigMap."""
    rng = random.Random(seed)
    touched = tuple(Touched("preempt", f"{rng.getrandbits(128):032x}", float(at)) for at in range(workloads))
    return replace(MEMORY, trust=replace(MEMORY.trust, touched=touched))


def test_the_next_leader_goes_on_where_the_last_one_wrote(server: Server) -> None:
    """Also its fence is known to who creates the Lease anew."""
    one, two = store(server)[0], store(server)[0]
    assert one.known_fence() == 0
    assert one.claim(3) == ""
    assert one.load() is None
    one.save(MEMORY)
    assert (one.problem, two.known_fence()) == ("", 3)
    assert two.claim(4) == ""
    assert two.load() == MEMORY


def test_an_earlier_leader_can_not_write_any_more(server: Server) -> None:
    """It learns it at its next tick, and nothing of this tick is sent."""
    one, two = store(server)[0], store(server)[0]
    one.claim(3)
    one.save(MEMORY)
    two.claim(4)
    one.save(replace(MEMORY, tick=8, halt=replace(MEMORY.halt, failed=FAILED)))
    assert "cannot be written" in one.problem
    two.save(replace(MEMORY, tick=9, fence=4))
    assert two.problem == ""
    assert "a later leader" in one.claim(3)


def test_a_memory_in_which_only_counters_moved_is_written_once_a_minute(server: Server) -> None:
    """A tick with effects changes more than counters, and is written before they leave."""
    one, api = store(server)
    one.claim(3)
    one.save(MEMORY)
    api.asked.clear()
    for tick in range(8, 19):
        server.timeline.run_for(5.0)
        one.save(
            replace(
                MEMORY, tick=tick, now_s=100.0 + tick, plan=replace(MEMORY.plan, proposed_since_s={"a": float(tick)})
            )
        )
    assert api.asked == []
    planned = Reservation("w", 0, 8, 1.0, 50.0, 90.0, ("n1",), firm=False, planned_s=90.0, uid="u")
    one.save(replace(MEMORY, tick=18, plan=replace(MEMORY.plan, reservations=(planned,))))
    assert len(api.asked) == 1
    api.asked.clear()
    one.save(
        replace(
            MEMORY, tick=18, plan=replace(MEMORY.plan, reservations=(replace(planned, start_s=60.0, planned_s=99.0),))
        )
    )
    assert api.asked == []
    server.timeline.run_for(60.0)
    one.save(replace(MEMORY, tick=19, plan=replace(MEMORY.plan, reservations=(planned,))))
    assert [method for method, _ in api.asked] == ["PUT"]
    one.save(replace(MEMORY, tick=20, halt=replace(MEMORY.halt, paused_reason="a person")))
    assert [method for method, _ in api.asked] == ["PUT", "PUT"]
    one.save(replace(MEMORY, tick=21, halt=replace(MEMORY.halt, paused_reason="a person")))
    one.flush()
    two = store(server)[0]
    two.claim(4)
    loaded = two.load()
    assert loaded is not None
    assert loaded.tick == 21


def test_a_large_memory_is_switched_as_a_whole(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that dies between two parts leaves the last whole memory."""
    monkeypatch.setattr(memory_module, "SHARD_BYTES", 64 << 10)
    one, api = store(server)
    one.claim(3)
    first, second = large(1, 8000), large(2, 8000)
    one.save(first)
    assert one.bytes > 2 * (64 << 10)
    left = iter([True, True, True, True, False])
    api.fate = lambda method, _path: "" if next(left) else "request lost"
    one.save(second)
    assert one.problem
    two = store(server)[0]
    two.claim(4)
    assert two.load() == first
    two.save(second)
    assert two.problem == ""
    three = store(server)[0]
    three.claim(5)
    assert three.load() == second


def test_what_this_process_decided_last_wins_over_the_cluster(server: Server, tmp_path: Path) -> None:
    """A `kill` that was obeyed while the API server was away is not forgotten by the restart."""
    one, api = store(server, tmp_path / "memory.json")
    one.claim(3)
    one.save(MEMORY)
    api.fate = lambda *_: "request lost"
    one.save(replace(MEMORY, tick=8, halt=replace(MEMORY.halt, killed=True)))
    assert one.problem
    again = store(server, tmp_path / "memory.json")[0]
    assert again.claim(4) == ""
    loaded = again.load()
    assert loaded is not None
    assert loaded.halt.killed


def test_a_label_set_by_a_person_and_a_deleted_map_do_not_stop_the_leader(server: Server) -> None:
    """The next write adopts the new version, or creates the map again."""
    one = store(server)[0]
    one.claim(3)
    one.save(MEMORY)
    client = server.client(ADMIN, "test")
    client.patch("configmaps", NAME.namespace, INDEX, {"metadata": {"labels": {"seen": "yes"}}})
    one.save(replace(MEMORY, tick=8, halt=replace(MEMORY.halt, failed=FAILED)))
    assert one.problem == ""
    client.delete("configmaps", NAME.namespace, INDEX)
    one.save(replace(MEMORY, tick=9, halt=replace(MEMORY.halt, failed=FAILED * 2)))
    assert one.problem == ""


@pytest.mark.parametrize("patch", [{"binaryData": {"memory": "AAAA"}}, {"data": {"index.json": "{"}}])
def test_a_damaged_memory_is_not_guessed_at(server: Server, patch: dict[str, Any]) -> None:
    """One error that names the ConfigMap and the way out."""
    one = store(server)[0]
    one.claim(3)
    one.save(MEMORY)
    server.client(ADMIN, "test").patch("configmaps", NAME.namespace, INDEX, patch)
    with pytest.raises(InputError, match=f"ConfigMap gpu-autopilot/{INDEX}.*delete"):
        store(server)[0].claim(4)


def test_a_memory_of_full_size_fits_into_config_maps(server: Server) -> None:
    """Far more than a cluster of 4,000 GPUs has; no map is over 1 MiB."""
    one = store(server)[0]
    one.claim(3)
    one.save(large())
    assert one.problem == ""
    maps = server.client(ADMIN, "test").list("configmaps", NAME.namespace)
    sizes = [len(base64.b64decode((each.get("binaryData") or {}).get("memory", ""))) for each in maps]
    assert sum(size > 0 for size in sizes) > 1
    assert max(sizes) < 1 << 20


def inbox(server: Server, leads: str = "") -> tuple[ClusterInbox, InProcess]:
    """An inbox, and the requests that it sends."""
    api = InProcess(server)
    return ClusterInbox(api, NAME.namespace, lambda: "", lambda: leads), api


def test_commands_that_no_tick_has_obeyed_go_to_the_next_leader(server: Server) -> None:
    """In their order, with numbers that are never used twice."""
    one, two = inbox(server)[0], inbox(server)[0]
    assert one.claim(3, known=4) == ""
    given = [one.receive(Command(CommandKind.APPROVE, "ada", 1.0, f"p{number}")) for number in range(3)]
    assert [each.sequence for each in given] == [5, 6, 7]
    assert one.drain(0.0) == tuple(given)
    assert one.drain(0.0) == ()
    assert two.claim(4, known=5) == ""
    assert [each.subject for each in two.drain(0.0)] == ["p1", "p2"]
    assert two.receive(Command(CommandKind.KILL, "ada", 2.0)).sequence == 8


def test_the_next_leader_knows_where_a_command_came_from(server: Server) -> None:
    """Also of the first one that an empty inbox received: what sent it asks the next leader for it."""
    one, two = inbox(server)[0], inbox(server)[0]
    one.claim(3, known=-1)
    given = one.receive(
        Command(
            CommandKind.APPROVE,
            "ada",
            1.0,
            "p",
            seen=Seen("preempt", "q", "w", 0, "plan", False, True, 8.0, 8.0, 100.0, ("q",), ("batch",)),
            exactly=True,
        ),
        "annotation 1",
    )
    assert one.received("annotation 1") == given
    two.claim(4, known=-1)
    assert two.received("annotation 1") == given
    assert two.received("annotation 2") is None


def test_an_earlier_leader_accepts_no_command_silently(server: Server) -> None:
    """Who sends one hears that it was not accepted: no leader will ever see it."""
    one, two = inbox(server)[0], inbox(server)[0]
    one.claim(3, known=-1)
    two.claim(4, known=-1)
    with pytest.raises(InputError, match="not accepted"):
        one.receive(Command(CommandKind.PAUSE, "ada", 1.0))
    with pytest.raises(InputError, match="two leads"):
        inbox(server, "two leads")[0].receive(Command(CommandKind.PAUSE, "ada", 1.0))


def test_few_commands_that_the_memory_knows_are_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map stays small; what sent one of them is told that it was taken, also by the next leader."""
    monkeypatch.setattr(inbox_module, "KEPT", 2)
    one, _ = inbox(server)
    one.claim(3, known=-1)
    for number in range(5):
        one.receive(Command(CommandKind.PAUSE, "ada", float(number)), f"annotation {number}")
        one.drain(0.0)
        one.decided(number)
    found = server.store.get("configmaps", NAME.namespace, INBOX)
    assert found is not None
    assert found["data"]["commands.json"].count('"origin"') == 3
    two = inbox(server)[0]
    two.claim(4, known=4)
    assert two.drain(0.0) == ()
    assert [two.received(f"annotation {number}") is not None for number in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]
