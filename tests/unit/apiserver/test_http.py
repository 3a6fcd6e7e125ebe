"""The server over a socket: clients that are not ours, streams, faults, and a clock that can be held."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
import yaml

from apiserver.cluster import cluster
from apiserver.http.faults import FaultPlan, Faults
from apiserver.http.serve import Running, serve
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from tests.kits.answers import fastest_s

START = datetime(2026, 11, 23, tzinfo=UTC)
HEADERS = {"Authorization": "Bearer admin"}


@pytest.fixture
def running() -> Iterator[Running]:
    """A cluster that listens, with a faulty shell that is quiet yet."""
    server = cluster(Timeline(START), random.Random(1))
    server.timeline.run_for(1.0)  # controllers have given the namespaces what they hold
    with serve(server, faults=Faults()) as listening:
        yield listening


def _maps(running: Running) -> str:
    return f"{running.url}/api/v1/namespaces/default/configmaps"


def _made(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "1"}}


def test_a_watch_streams_what_another_client_writes(running: Running) -> None:
    """Events arrive while the stream is open."""
    one = {"watch": "1", "fieldSelector": "metadata.name=a"}
    with requests.get(_maps(running), headers=HEADERS, params=one, stream=True, timeout=10) as stream:
        lines = stream.iter_lines()
        assert requests.post(_maps(running), headers=HEADERS, json=_made("a"), timeout=10).status_code == 201
        event = json.loads(next(lines))
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


def test_a_body_does_not_wait_behind_its_head(running: Running) -> None:
    """On a connection that is kept an answer comes at once, and not with the client's delayed acknowledgement."""
    assert fastest_s(_maps(running), HEADERS) < 0.03


def test_what_happens_at_one_moment_leaves_in_one_write(running: Running) -> None:
    """Each write after a client is gone is one more warning, until the next turn of the loop notices it."""
    client = running.shell.server.client(ADMIN, "test")
    one = {"watch": "1", "labelSelector": "moment=one"}
    with requests.get(_maps(running), headers=HEADERS, params=one, stream=True, timeout=10) as stream:
        with running.clock.lock:
            for number in range(20):
                meta = {"name": f"m{number}", "namespace": "default", "labels": {"moment": "one"}}
                client.create("configmaps", {**_made(""), "metadata": meta})
        piece = next(stream.raw.read_chunked())
    assert piece.count(b"\n") == 20


def test_a_held_clock_stands_still_and_the_server_answers(running: Running) -> None:
    """Two objects made while the clock is held have the same time."""
    with running.clock.hold() as timeline:
        before_us = timeline.now_us
        assert requests.post(_maps(running), headers=HEADERS, json=_made("a"), timeout=10).status_code == 201
        assert timeline.now_us == before_us
        with running.clock.lock:
            timeline.run_for(3600.0)
        later = requests.post(_maps(running), headers=HEADERS, json=_made("b"), timeout=10).json()
    assert later["metadata"]["creationTimestamp"].startswith("2026-11-23T01:")


def test_planned_faults_refuse_break_and_repeat(running: Running) -> None:
    """Each fault looks to the client as it does in the wild."""
    faults = running.shell.faults
    faults.plan = FaultPlan(too_many=1.0)
    refused = requests.get(_maps(running), headers=HEADERS, timeout=10)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    faults.plan = FaultPlan(dropped=1.0)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        requests.get(_maps(running), headers=HEADERS, timeout=10)
    faults.plan = FaultPlan(conflict=1.0)
    assert requests.post(_maps(running), headers=HEADERS, json=_made("c"), timeout=10).status_code == 409
    faults.plan = FaultPlan(duplicated=1.0)
    one = {"watch": "1", "fieldSelector": "metadata.name=d"}
    with requests.get(_maps(running), headers=HEADERS, params=one, stream=True, timeout=10) as stream:
        lines = stream.iter_lines()
        requests.post(_maps(running), headers=HEADERS, json=_made("d"), timeout=10)
        assert next(lines) == next(lines)


def test_tls_with_a_certificate_of_its_own() -> None:
    """The kubeconfig holds what a client needs to trust it."""
    with serve(cluster(Timeline(START), random.Random(1)), tls=True) as listening:
        config = yaml.safe_load(listening.kubeconfig())
        assert config["clusters"][0]["cluster"]["server"] == listening.url
        assert listening.url.startswith("https://127.0.0.1:")
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(listening.url, timeout=10)
