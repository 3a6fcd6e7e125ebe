"""A restart of the API server: no answers, then refusals while it warms up, then everything as before."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.requests import Request, Response, WatchStream
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN, User

Obj = dict[str, Any]
MAPS = "/api/v1/namespaces/default/configmaps"
READER = User("reader", ("system:authenticated",))
ROLE: Obj = {"metadata": {"name": "read"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
BINDING: Obj = {
    "metadata": {"name": "read"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "read"},
    "subjects": [{"kind": "User", "name": "reader"}],
}


@pytest.fixture
def server() -> Server:
    """A cluster with Kueue, whose user `reader` may do all."""
    made = cluster(Timeline(datetime(2026, 1, 1, tzinfo=UTC)), random.Random(1), kueue=True)
    client = made.client(ADMIN, "t")
    client.create("clusterroles.rbac.authorization.k8s.io", ROLE)
    client.create("clusterrolebindings.rbac.authorization.k8s.io", BINDING)
    made.timeline.run_for(10.0)
    return made


def ask(server: Server, path: str, query: dict[str, str] | None = None, user: User = READER) -> Response | WatchStream:
    """A read."""
    return server.handle(Request("GET", path, query or {}, user=user))


def restart(server: Server) -> None:
    """Killed, and a second later started."""
    server.uptime.kill()
    server.timeline.run_for(1.0)
    server.uptime.start()


def test_a_server_that_is_down_answers_nothing(server: Server) -> None:
    """Status 0 until the port opens again; watches that were open break without an event."""
    stream = ask(server, MAPS, {"watch": "1", "resourceVersion": str(server.store.version)})
    assert isinstance(stream, WatchStream)
    server.uptime.kill()
    assert (stream.closed, stream.take()) == (True, [])
    assert ask(server, MAPS).status == 0
    server.uptime.start()
    assert ask(server, MAPS).status == 0
    server.timeline.run_for(0.1)
    assert ask(server, MAPS).status != 0


def test_a_server_that_ends_keeps_its_watches_silent_for_a_minute(server: Server) -> None:
    """SIGTERM refuses requests at once and ends watches after 60 s, without an event."""
    stream = ask(server, MAPS, {"watch": "1"})
    assert isinstance(stream, WatchStream)
    stream.take()
    server.uptime.end()
    assert ask(server, MAPS).status == 0
    server.timeline.run_for(59.0)
    assert not stream.closed
    server.timeline.run_for(2.0)
    assert (stream.closed, stream.take()) == (True, [])


def test_rights_are_not_known_in_the_first_seconds(server: Server) -> None:
    """403 that names the roles not found, except for system:masters; the answer comes late; then all is as before."""
    restart(server)
    server.timeline.run_for(0.1)
    refused = ask(server, MAPS)
    assert isinstance(refused, Response)
    assert refused.status == 403
    assert 'clusterrole.rbac.authorization.k8s.io "read" not found' in refused.plain()["message"].partition("RBAC: ")[2]
    assert refused.delay_s > 1.0
    assert ask(server, MAPS, user=ADMIN).status == 200
    server.timeline.run_for(1.4)
    assert ask(server, MAPS).status == 200


def test_health_fails_until_the_start_is_over(server: Server) -> None:
    """/readyz and /livez tell which checks fail, after rights are complete as well."""
    restart(server)
    server.timeline.run_for(1.5)
    for path in ("/readyz", "/livez"):
        answer = ask(server, path)
        assert isinstance(answer, Response)
        assert answer.status == 500
        assert "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld" in answer.body
        assert answer.body.endswith(f"{path[1:]} check failed\n")
    server.timeline.run_for(1.5)
    ready = ask(server, "/readyz")
    assert isinstance(ready, Response)
    assert (ready.status, ready.body) == (200, "ok")


def test_custom_resources_of_several_versions_are_read_late(server: Server) -> None:
    """429 with Retry-After while their cache is filled."""
    restart(server)
    server.timeline.run_for(1.5)
    path = "/apis/kueue.x-k8s.io/v1beta2/workloads"
    answer = ask(server, path)
    assert isinstance(answer, Response)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.plain()["message"] == "storage is (re)initializing"
    server.timeline.run_for(1.0)
    assert ask(server, path).status == 200


def test_versions_from_before_are_too_old_to_watch(server: Server) -> None:
    """A watch gets 410 and has to list; an exact list of that version is answered unless etcd was compacted."""
    before = str(server.store.version)
    server.client(ADMIN, "t").create("configmaps", {"metadata": {"name": "a", "namespace": "default"}})
    exact = {"resourceVersion": before, "resourceVersionMatch": "Exact"}
    server.store.compact_database()
    assert ask(server, MAPS, exact).status == 200, "memory still has it"
    restart(server)
    server.timeline.run_for(3.0)
    stream = ask(server, MAPS, {"watch": "1", "resourceVersion": before})
    assert isinstance(stream, WatchStream)
    (event,) = stream.take()
    assert (event.type, event.object()["code"], stream.closed) == ("ERROR", 410, True)
    assert ask(server, MAPS, exact).status == 410


def test_an_exact_list_survives_a_restart_without_compaction(server: Server) -> None:
    """The database has the old versions."""
    before = str(server.store.version)
    server.client(ADMIN, "t").create("configmaps", {"metadata": {"name": "a", "namespace": "default"}})
    restart(server)
    server.timeline.run_for(3.0)
    assert ask(server, MAPS, {"resourceVersion": before, "resourceVersionMatch": "Exact"}).status == 200


def test_controllers_wait_for_the_server(server: Server) -> None:
    """What happens while it is down is done when it is back: a Job gets its pods then."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}}
    job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"template": template}}
    server.client(ADMIN, "t").create("jobs.batch", job)
    server.uptime.kill()
    server.timeline.run_for(30.0)
    assert server.store.count("pods") == 0
    server.uptime.start()
    server.timeline.run_for(5.0)
    assert server.store.count("pods") == 1
