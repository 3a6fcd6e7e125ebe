"""List and watch of one kind against canned answers, one exchange at a time."""

from __future__ import annotations

import random
from threading import Event, Thread

import pytest

from collectors.kubernetes.cache import Cache, Changes
from collectors.kubernetes.kinds import CLUSTER_QUEUES, PODS, Kind
from collectors.kubernetes.reflector import Reflector, Timing
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import ApiError, CutError
from tests.kits.kube_api import Canned, Json, bookmark, line
from tests.kits.kube_objects import cluster_queue, pod

GONE = line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 3 (9)"})


class Stepped:
    """A reflector with a clock of the test."""

    def __init__(self, *objects: Json, kind: Kind = PODS, namespace: str = "", streams: bool = False) -> None:
        self.api = Canned(streams=streams)
        self.api.put(*objects)
        self.cache = Cache(kind, namespace)
        self.now_s, self.heard = 100.0, list[bool]()
        timing = Timing(page=2, watch_s=15, first_wait_s=1.0, longest_wait_s=8.0, gone_s=600.0)
        self.reflector = Reflector(
            self.cache, self.api, lambda: self.now_s, timing, random.Random(1), self.heard.append
        )
        if not streams:
            self.reflector.step()  # asks for a streamed list, and is refused

    def step(self, *events: bytes | Exception) -> float:
        """One exchange; a watch has these events."""
        if events:
            self.api.scripts[self.cache.kind.name] = [list(events)]
        return self.reflector.step()

    def changes(self) -> Changes:
        return self.cache.drain()

    def names(self) -> set[str]:
        return {each.metadata.name for each in self.cache._objects.values()}


def changed(found: Json, version: int, event: str = "MODIFIED", **more: object) -> bytes:
    """An event of an object at a version."""
    return line(event, {**found, "metadata": {**found["metadata"], "resourceVersion": str(version), **more}})


def test_a_list_comes_in_pages_of_one_instant() -> None:
    """Five pods in pages of two are three requests, and one change of the cache."""
    view = Stepped(*[pod(f"p{k}") for k in range(5)])
    view.step()
    assert [query.get("continue") for path, query in view.api.asked if "limit" in query] == [None, "2", "4"]
    assert view.names() == {"p0", "p1", "p2", "p3", "p4"}


def test_a_list_is_streamed_where_the_server_can() -> None:
    """The bookmark at its end makes it whole; until then the cache holds nothing."""
    view = Stepped(pod("a"), pod("b"), streams=True)
    view.step()
    assert view.names() == {"a", "b"}
    assert not [query for _, query in view.api.asked if "limit" in query]


def test_a_server_that_fails_to_stream_is_asked_for_pages() -> None:
    """An old etcd ends the streamed list with an error 500."""
    view = Stepped(pod("a"), streams=True)
    view.step(line("ERROR", {"kind": "Status", "code": 500, "message": "etcd is too old"}))
    view.step()
    assert view.names() == {"a"}


def test_a_watch_is_resumed_where_the_last_one_ended() -> None:
    """The bookmark before its end is the place, so no event is lost and nothing is listed again."""
    view = Stepped(pod("a"))
    view.step()
    view.step(changed(pod("b"), 20, "ADDED"), bookmark(25))
    view.step(changed(pod("c"), 26, "ADDED"), bookmark(27))
    assert view.api.asked[-1][1]["resourceVersion"] == "25"
    assert view.names() == {"a", "b", "c"}
    assert view.reflector.lists == 1


def test_a_version_that_is_too_old_is_listed_again() -> None:
    """410 in a watch is answered by a new list."""
    view = Stepped(pod("a"))
    view.step()
    view.step(GONE)
    view.step()
    assert view.reflector.lists == 2
    assert view.cache.health.problem == ""


@pytest.mark.parametrize(
    "events",
    [
        [changed(pod("b"), 30, "ADDED"), changed(pod("a"), 29)],  # reordered, or etcd restored from a backup
        [changed(pod("b"), 30, "ADDED"), ApiError(0, "the watch was silent for too long")],
        [b'{"type":"MODIFIED","obj'],
    ],
)
def test_after_a_watch_that_may_have_lost_events_the_kind_is_listed_again(events: list[bytes | Exception]) -> None:
    """Out of order, silent, garbled: the list is the truth."""
    view = Stepped(pod("a"))
    view.step()
    view.step(*events)
    view.step()
    assert view.reflector.lists == 2
    assert view.names() == {"a"}


def test_a_watch_that_is_cut_begins_anew_where_it_began() -> None:
    """Not where it was cut: an event that a proxy held back comes again, and nothing is listed."""
    view = Stepped(pod("a"))
    view.step()
    view.step(changed(pod("b"), 20, "ADDED"), bookmark(25))
    view.step(changed(pod("d"), 31, "ADDED"), CutError("the watch was cut"))
    assert "the watch was cut" in view.cache.health.problem
    again = [changed(pod("c"), 30, "ADDED"), changed(pod("d"), 31, "ADDED"), bookmark(32)]
    view.step(*again)
    assert view.api.asked[-1][1]["resourceVersion"] == "25"
    assert view.names() == {"a", "b", "c", "d"}
    assert view.reflector.lists == 1
    assert view.cache.health.problem == ""


def test_what_a_watch_repeats_changes_nothing() -> None:
    """After a cut old states and deleted objects come again: the newer state and the deletion stay."""
    view = Stepped(pod("a"))
    view.step()
    deleted = changed(pod("b"), 31, "DELETED")
    events = [changed(pod("b"), 29, "ADDED"), changed(pod("a"), 30, spec="new"), deleted]
    view.step(*events, CutError("the watch was cut"))
    view.changes()
    view.step(events[0], CutError("the watch was cut"))
    assert view.names() == {"a"}
    view.step(*events, bookmark(32))
    changes = view.changes()
    assert (changes.there, changes.deleted) == ([], [])
    assert view.names() == {"a"}
    assert view.reflector.version == 32


def test_a_streamed_list_that_is_cut_is_listed_again() -> None:
    """What came of it is not a list."""
    view = Stepped(pod("a"), streams=True)
    view.step(changed(pod("b"), 20, "ADDED"), CutError("the watch was cut"))
    view.step()
    assert view.names() == {"a"}


def test_a_server_that_was_away_for_long_is_listed_again() -> None:
    """Its etcd may have been restored from a backup, and our version may mean something else."""
    view = Stepped(pod("a"))
    view.step()
    view.step(changed(pod("b"), 20, "ADDED"), bookmark(25))
    view.step(CutError("the watch was cut"))
    view.now_s += 31.0
    view.step()
    assert view.reflector.lists == 2


def test_a_backup_that_was_restored_is_seen_where_the_versions_go_back() -> None:
    """The bookmark of the new history is lower than ours, so the kind is listed again."""
    view = Stepped(pod("a"))
    view.step()
    view.step(changed(pod("b"), 20, "ADDED"), bookmark(25))
    view.step(CutError("the watch was cut"))
    view.step(bookmark(12))
    view.step()
    assert view.reflector.lists == 2
    assert view.names() == {"a"}


def test_a_watch_without_even_a_bookmark_is_not_trusted() -> None:
    """A server whose versions went back stays silent about everything below ours."""
    view = Stepped(pod("a"))
    view.step()
    view.api.scripts["pods"] = [[]]
    view.reflector.step()
    view.step()
    assert view.reflector.lists == 2


def test_an_object_that_was_created_anew_under_its_name_is_another_one() -> None:
    """The missed deletion of the old uid is reported with the new object."""
    view = Stepped(pod("a", uid="old"))
    view.step()
    view.changes()
    view.step(changed(pod("a", uid="new"), 30, "ADDED"), bookmark(31))
    changes = view.changes()
    assert [each.metadata.uid for each in changes.there] == ["new"]
    assert changes.deleted == ["old"]


def test_only_events_report_deletions() -> None:
    """What a new list lacks is gone without a report, which the core may suspect."""
    first, second = pod("a"), pod("b")
    view = Stepped(first, second)
    view.step()
    view.changes()
    view.step(changed(first, 30, "DELETED"), bookmark(31))
    assert view.changes().deleted == [first["metadata"]["uid"]]
    view.api.remove(second)
    view.step(GONE)
    view.step()
    changes = view.changes()
    assert [each.metadata.name for each in changes.gone if each.metadata.name == "b"] == ["b"]
    assert changes.deleted == []


def test_an_event_after_the_deletion_of_its_object_does_not_bring_it_back() -> None:
    """A modification that arrives late is of a dead object."""
    found = pod("a")
    view = Stepped(found)
    view.step()
    view.step(changed(found, 30, "DELETED"), changed(found, 30), bookmark(31))
    assert view.names() == set()


def test_no_permission_names_the_right_and_the_view_is_not_whole() -> None:
    """403 says which right is missing; it is asked again, since a role may be granted."""
    view = Stepped(pod("a"))
    view.api.refuse["list pods"] = ApiError(403, '403 pods is forbidden: User "x" cannot list')
    assert view.step() > 0
    assert "no permission to list pods: grant it list and watch" in view.cache.health.partial
    view.api.refuse.clear()
    view.step()
    assert (view.names(), view.cache.health.partial, view.cache.health.problem) == ({"a"}, "", "")


def test_no_permission_in_one_namespace_names_it() -> None:
    """Of several namespaces that are asked for apart the refused one is named."""
    view = Stepped(pod("a"), namespace="team")
    view.api.refuse["*"] = ApiError(403, "403 pods is forbidden")
    view.step()
    assert "no permission to list pods in namespace team" in view.cache.health.partial


def test_a_server_that_is_away_for_ten_minutes_is_named_and_then_listed() -> None:
    """The last objects stay with their age, no wait is longer than the limit, and the first answer is a list."""
    view = Stepped(pod("a"))
    view.step()
    view.api.refuse["*"] = ApiError(0, "the API server does not answer: connection refused")
    end_s, waits = view.now_s + 600.0, []
    while view.now_s < end_s:
        waits.append(view.step())
        view.now_s += waits[-1]
    health = view.cache.health
    assert health.sign_s == 100.0
    assert 6.0 < max(waits) <= 8.0
    assert "does not answer: connection refused" in health.problem
    assert view.names() == {"a"}
    view.api.refuse.clear()
    view.api.put(pod("b"))
    view.step()
    assert (view.names(), view.cache.health.problem, view.reflector.lists) == ({"a", "b"}, "", 2)


def test_without_the_right_to_watch_the_kind_is_listed_again_and_again() -> None:
    """The view stays true, and the gap names the missing verb."""
    view = Stepped(pod("a"))
    view.step()
    view.api.refuse["watch pods"] = ApiError(403, "403 cannot watch")
    view.step()
    assert "no permission to watch pods" in view.cache.health.problem
    view.api.put(pod("b"))
    assert view.step() == Timing().poll_s
    assert view.names() == {"a", "b"}


def test_a_kind_that_is_not_served_is_off_and_asked_for_later() -> None:
    """A missing CRD is no problem: the feature is not there."""
    view = Stepped(kind=CLUSTER_QUEUES)
    view.api.absent.add("clusterqueues")
    assert view.step() == Timing().recheck_s
    assert view.cache.health.off
    assert view.cache.health.synced
    view.api.absent.clear()
    view.api.put(cluster_queue("q", 8))
    view.step()
    assert view.names() == {"q"}


def test_a_kind_that_disappears_is_missed_for_ten_minutes() -> None:
    """A CRD that is gone could be an upgrade that failed: nothing is decided on it until the time is over."""
    view = Stepped(cluster_queue("q", 8), kind=CLUSTER_QUEUES)
    view.step()
    view.api.absent.add("clusterqueues")
    view.step(GONE)
    view.step()
    assert "was served and is not any more" in view.cache.health.partial
    assert view.names() == {"q"}
    view.now_s += 601
    view.step()
    assert (view.cache.health.off, view.names()) == (True, set())


def test_another_version_of_a_group_is_named() -> None:
    """Kueue that serves v1beta1 alone is a reason to stop, not an absent Kueue."""
    view = Stepped(kind=CLUSTER_QUEUES)
    view.api.absent.add("clusterqueues")
    view.api.groups["kueue.x-k8s.io"] = ["v1beta1"]
    view.step()
    assert "serves kueue.x-k8s.io only in v1beta1; this version reads v1beta2" in view.cache.health.partial


def test_waits_grow_and_never_undercut_the_server() -> None:
    """Failures in a row double the wait up to its limit; Retry-After counts, with jitter on top."""
    view = Stepped(pod("a"))
    view.api.refuse["*"] = ApiError(0, "connection refused")
    waits = [view.step() for _ in range(8)]
    assert all(base / 2 <= wait <= base for base, wait in zip((1, 2, 4, 8, 8, 8, 8, 8), waits, strict=True))
    view.api.refuse["*"] = ApiError(429, "429 too many requests", retry_after_s=30)
    assert 30 <= view.step() <= 33


def test_an_object_that_cannot_be_read_is_named_and_the_others_count() -> None:
    """One bad object does not cost the list."""
    bad = pod("bad")
    bad["spec"]["nodeName"] = 7
    view = Stepped(pod("a"), bad)
    view.step()
    assert view.names() == {"a"}
    assert view.cache.health.bad == ("team/bad: spec.nodeName is 7: Expected str, got int",)


def test_an_object_that_can_no_longer_be_read_keeps_its_last_good_state() -> None:
    """Neither an event nor a new list takes it away, and nothing is listed again for it."""
    view = Stepped(pod("a"), pod("b"))
    view.step()
    view.changes()
    view.step(changed(pod("a"), 30, creationTimestamp=7), changed(pod("b"), 31))
    changes = view.changes()
    assert ([each.metadata.name for each in changes.there], changes.gone) == (["b"], [])
    assert [each.reason for each in (changes.unread or {}).values()] == [
        "metadata.creationTimestamp is 7: Expected datetime | null, got int"
    ]
    assert (view.names(), view.reflector.lists) == ({"a", "b"}, 1)
    bad = pod("a")
    bad["spec"]["priority"] = "high"
    view.api.put(bad)
    view.step(GONE)
    view.step()
    assert (view.names(), view.reflector.lists, view.changes().gone) == ({"a", "b"}, 2, [])
    view.step(changed(pod("a"), 32))
    assert (view.changes().unread, view.cache.health.bad) == ({}, ())


def test_a_page_with_an_object_nested_too_deeply_is_read() -> None:
    """The decoder gives the whole page up; the other objects of the page count."""
    bad = pod("bad")
    bad["spec"]["nodeName"] = "DEEP"
    view = Stepped(pod("a"), bad)
    get = view.api.get
    deep = b"[" * 3000 + b"]" * 3000
    view.api.get = lambda path, query: get(path, query).replace(b'"DEEP"', deep)  # type: ignore[method-assign]
    view.step()
    assert view.names() == {"a"}
    assert view.cache.health.bad[0].startswith("team/bad: spec.nodeName is a list with 1 entries: Expected str")


def test_a_watch_that_breaks_begins_anew() -> None:
    """An error that nobody expects is counted, named and waited out; it does not end the thread."""
    view = Stepped(pod("a"))
    view.step()
    view.cache.put = None  # type: ignore[method-assign, assignment]
    assert view.step(changed(pod("b"), 20, "ADDED")) > 0
    assert view.reflector.restarts == 1
    assert "its watch ended by an error and was restarted: TypeError" in view.cache.health.problem


def test_annotations_are_dropped_unless_they_are_read() -> None:
    """256 KiB of somebody's annotation cost no memory, and a value of ours is cut behind its longest valid length."""
    view = Stepped(pod("a", annotations={"other/x": "x" * 262_144, "gpu-autopilot.io/members": "4" * 10_000}))
    view.step()
    (found,) = view.changes().there
    assert found.metadata.annotations == {"gpu-autopilot.io/members": "4" * 1025}


def test_one_namespace_is_asked_for_alone() -> None:
    """An account without rights on all namespaces reads those that the settings name."""
    view = Stepped(pod("a", namespace="one"), pod("b", namespace="two"), namespace="one")
    view.step()
    assert view.names() == {"a"}
    assert {path for path, _ in view.api.asked} == {"/api/v1/namespaces/one/pods"}


@pytest.mark.parametrize(
    ("event", "notes", "hurry"),
    [
        ("ADDED", {"gpu-autopilot.io/slo-class": "latency-critical"}, True),
        ("ADDED", {"gpu-autopilot.io/objective-s": "300ms"}, True),
        ("ADDED", {"gpu-autopilot.io/slo-class": "batch"}, False),
        ("ADDED", {}, False),
        ("MODIFIED", {"gpu-autopilot.io/slo-class": "latency-critical"}, False),
    ],
)
def test_new_work_that_promises_a_latency_is_urgent(event: str, notes: dict[str, str], hurry: bool) -> None:
    """Other changes are reported, and may wait for the next tick."""
    view = Stepped(pod("a"))
    view.step()
    view.heard.clear()
    view.step(changed(pod("b", annotations=notes), 50, event), bookmark(60))
    assert view.heard == [hurry]


def test_a_thread_that_ended_is_started_again_and_counted() -> None:
    """Whatever ended it: the kind is listed anew, and the metric names it."""
    api = Canned()
    api.put(pod("a"))
    now_s = 0.0
    cluster = Cluster(api, lambda: now_s, kinds=(PODS,))
    ended, done = Thread(target=lambda: None), Event()
    ended.start()
    ended.join()
    cluster.on_change = lambda _: done.set()
    cluster._threads = [ended]
    cluster.supervise()
    assert cluster.counts() == {"watch_restarts_total": {("pods",): 1.0}}
    assert done.wait(10.0)
    assert cluster._threads[0].is_alive()
    cluster._threads = [ended]
    cluster.supervise()  # not more often than every few seconds
    assert cluster.counts() == {"watch_restarts_total": {("pods",): 1.0}}
    cluster.close()
