"""Parts of actors: the work queue, the recorder of events, backoff and indexes of Jobs, scores of nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apiserver.actors.fit import preference, requests_milli, view_of
from apiserver.actors.job_status import Backoff, indexes_text, parse_indexes, policy_action
from apiserver.actors.queue import WorkQueue
from apiserver.actors.recorder import COMBINED, Recorder
from apiserver.cluster import cluster
from apiserver.errors import StatusError
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

Obj = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_earliest_time_of_a_key_counts_and_a_key_is_synced_once() -> None:
    """Later times are forgotten, earlier ones replace it."""
    timeline = Timeline(START)
    synced: list[float] = []
    queue: WorkQueue[str] = WorkQueue(timeline, lambda _key: synced.append(timeline.now_s), 0.0)
    for delay_s in (3.0, 1.0, 2.0):
        queue.add_after("a", delay_s)
    timeline.run_for(10)
    assert [round(each - START.timestamp(), 3) for each in synced] == [1.0]


def test_a_refused_sync_is_tried_again_later_each_time() -> None:
    """The delay doubles; a success forgets it."""
    timeline = Timeline(START)
    tried: list[float] = []

    def sync(_key: str) -> None:
        tried.append(timeline.now_s - START.timestamp())
        if len(tried) < 4:
            raise StatusError(409, "Conflict", "changed")

    WorkQueue(timeline, sync, 0.0, retry_s=1.0).add("a")
    timeline.run_for(60)
    assert [round(each, 3) for each in tried] == [0.0, 1.0, 3.0, 7.0]


def test_a_key_that_is_added_during_its_sync_waits_for_the_end() -> None:
    """Two syncs of one key never overlap."""
    timeline = Timeline(START)
    steps: list[tuple[str, float]] = []

    def sync(_key: str) -> Iterator[float]:
        steps.append(("begin", timeline.now_s - START.timestamp()))
        yield 0.5
        steps.append(("end", timeline.now_s - START.timestamp()))

    queue: WorkQueue[str] = WorkQueue(timeline, sync, 0.0)
    queue.add("a")
    timeline.run_for(0.1)
    queue.add("a")
    timeline.run_for(10)
    assert steps == [("begin", 0.0), ("end", 0.5), ("begin", 0.5), ("end", 1.0)]


def test_equal_events_are_counted_and_many_similar_ones_combined() -> None:
    """From the eleventh different text on, one event stands for all."""
    timeline = Timeline(START)
    server = cluster(timeline, random.Random(1))
    recorder = Recorder(server.client(ADMIN, "test"), timeline, "tester")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}}
    for text in ["same", "same", *(f"text {number}" for number in range(12))]:
        recorder.normal(node, "Reason", text)
        timeline.run_for(1)
    events = server.store.objects("events", "default")
    counts = {each["message"]: each["count"] for each in events}
    assert counts["same"] == 2
    assert sum(each["message"].startswith(COMBINED) for each in events) == 1
    assert counts[f"{COMBINED}text 11"] == 3


def test_the_backoff_doubles_with_failures_and_a_success_ends_it() -> None:
    """Ten seconds after the first failure, twenty after the second."""

    def ended(second: int) -> Obj:
        finished = (START + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"metadata": {}, "status": {"containerStatuses": [{"state": {"terminated": {"finishedAt": finished}}}]}}

    one = Backoff().after([], [ended(0)])
    assert one.left_s(START + timedelta(seconds=4)) == 6.0
    two = one.after([], [ended(4)])
    assert two.left_s(START + timedelta(seconds=4)) == 20.0
    assert two.after([ended(5)], []).left_s(START + timedelta(seconds=5)) == 0.0


@pytest.mark.parametrize("text", ["", "0", "0,1", "0-3", "1,3-5,7"])
def test_indexes_are_written_as_ranges_and_read_back(text: str) -> None:
    """Two neighbours are a list, three are a range."""
    assert indexes_text(parse_indexes(text)) == text


def test_the_first_rule_of_the_failure_policy_that_matches_decides() -> None:
    """By exit code or by condition; else the failure counts."""
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    ]
    job = {"spec": {"podFailurePolicy": {"rules": rules}}}

    def pod(code: int, *conditions: str) -> Obj:
        state = {"name": "main", "state": {"terminated": {"exitCode": code}}}
        held = [{"type": each, "status": "True"} for each in conditions]
        return {"status": {"containerStatuses": [state], "conditions": held}}

    assert policy_action(job, pod(42, "DisruptionTarget")) == "Ignore"
    assert policy_action(job, pod(42)) == "FailJob"
    assert policy_action(job, pod(1)) == "Count"


def test_a_node_with_fewer_pods_has_more_points_even_if_they_ask_for_nothing() -> None:
    """A pod that asks for no memory counts with a default."""
    amounts = {"cpu": "4", "memory": "8Gi"}
    node = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": amounts}}
    pod = {"metadata": {"namespace": "d", "name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    busy, idle = view_of(node), view_of(node)
    busy.take(pod | {"metadata": {"namespace": "d", "name": "other"}})
    asked = requests_milli(pod)
    assert preference(pod, idle, asked) > preference(pod, busy, asked)
    busy.give(pod | {"metadata": {"namespace": "d", "name": "other"}})
    assert preference(pod, idle, asked) == preference(pod, busy, asked)
