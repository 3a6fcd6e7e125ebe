"""The server as a machine: writes, versions, lists, watches and actors on a virtual timeline."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from apiserver.actors.base import Actor
from apiserver.cluster import cluster
from apiserver.requests import Request, Response, WatchStream
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

START = datetime(2026, 11, 23, tzinfo=UTC)
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def server() -> Server:
    """A fresh cluster."""
    return cluster(Timeline(START), random.Random(1))


def ask(server: Server, method: str, path: str, body: Any = None, **query: str) -> Response:
    """A request whose answer is no stream."""
    headers = {"content-type": "application/merge-patch+json"} if method == "PATCH" else {}
    answer = server.handle(Request(method, path, query, headers, body, ADMIN))
    assert isinstance(answer, Response)
    return answer


def config_map(name: str, **data: str) -> dict[str, Any]:
    """A ConfigMap with data."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_each_write_has_a_version_of_its_own_and_a_write_of_the_same_has_none(server: Server) -> None:
    """A write that changes nothing keeps the version."""
    first = ask(server, "POST", MAPS, config_map("a", k="1")).plain()
    second = ask(server, "PATCH", f"{MAPS}/a", {"data": {"k": "2"}}).plain()
    third = ask(server, "PATCH", f"{MAPS}/a", {"data": {"k": "2"}}).plain()
    versions = [int(each["metadata"]["resourceVersion"]) for each in (first, second, third)]
    assert versions[1] == versions[0] + 1
    assert versions[2] == versions[1]


def test_a_stale_version_is_a_conflict(server: Server) -> None:
    """A patch that states another version than the stored one is refused."""
    ask(server, "POST", MAPS, config_map("a", k="1"))
    answer = ask(server, "PATCH", f"{MAPS}/a", {"metadata": {"resourceVersion": "1"}, "data": {"k": "2"}})
    assert answer.status == 409
    assert answer.body["reason"] == "Conflict"


def test_pages_show_one_version_while_objects_change(server: Server) -> None:
    """The pages of one list do not see later changes."""
    for name in "abc":
        ask(server, "POST", MAPS, config_map(name, k="1"))
    first = ask(server, "GET", MAPS, limit="2").plain()
    ask(server, "DELETE", f"{MAPS}/c")
    ask(server, "POST", MAPS, config_map("d", k="1"))
    rest = ask(server, "GET", MAPS, limit="2", **{"continue": first["metadata"]["continue"]}).plain()
    assert [item["metadata"]["name"] for item in first["items"] + rest["items"]][:3] == ["a", "b", "c"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_what_leaves_a_selector_is_deleted_for_its_watch(server: Server) -> None:
    """An object that leaves the selector is DELETED, and ADDED when it returns."""
    stream = server.handle(Request("GET", MAPS, {"watch": "1", "labelSelector": "set=a"}, user=ADMIN))
    assert isinstance(stream, WatchStream)
    made = config_map("a", k="1")
    made["metadata"]["labels"] = {"set": "a"}
    ask(server, "POST", MAPS, made)
    ask(server, "PATCH", f"{MAPS}/a", {"metadata": {"labels": {"set": "b"}}})
    ask(server, "PATCH", f"{MAPS}/a", {"metadata": {"labels": {"set": "a"}}})
    assert [event.type for event in stream.take()] == ["ADDED", "DELETED", "ADDED"]


def test_a_watch_from_before_the_history_gets_410(server: Server) -> None:
    """The stream holds one ERROR event and ends."""
    ask(server, "POST", MAPS, config_map("a", k="1"))
    before = str(server.store.version)
    ask(server, "POST", MAPS, config_map("b", k="1"))
    server.store.compact("configmaps")
    stream = server.handle(Request("GET", MAPS, {"watch": "1", "resourceVersion": before}, user=ADMIN))
    assert isinstance(stream, WatchStream)
    (event,) = stream.take()
    assert (event.type, event.object()["code"], stream.closed) == ("ERROR", 410, True)


class Copier(Actor):
    """Copies each ConfigMap of the namespace default, a second later."""

    manager = "copier"

    def start(self) -> None:
        self.server.store.subscribe("configmaps", self.on_change)

    def on_change(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        if event.type == "ADDED" and not name.endswith("-copy"):
            copied = config_map(f"{name}-copy", **event.obj["data"])
            copied["metadata"]["namespace"] = "default"
            self.server.timeline.at(1.0, partial(self.copy, copied))

    def copy(self, copied: dict[str, Any]) -> None:
        """Create the copy."""
        self.client.create("configmaps", copied)


def test_actors_act_when_time_runs_and_not_inside_a_request(server: Server) -> None:
    """Their callbacks wait for the timeline."""
    Copier(server)
    ask(server, "POST", MAPS, config_map("a", k="1"))
    server.timeline.run_for(0.5)
    assert server.store.get("configmaps", "default", "a-copy") is None
    server.timeline.run_for(0.5)
    assert server.store.get("configmaps", "default", "a-copy") is not None


def test_a_read_of_a_version_of_the_future_times_out_after_a_wait(server: Server) -> None:
    """The answer says how long a real server takes over it."""
    answer = ask(server, "GET", MAPS, resourceVersion="999999999")
    assert (answer.status, answer.body["details"]["retryAfterSeconds"], answer.delay_s) == (504, 1, 3.0)
