"""What people keep the autopilot away from: by namespace and by object, always towards more protection."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from collectors.kubernetes.collector import Options
from collectors.kubernetes.kinds import NAMESPACES
from collectors.kubernetes.transport import ApiError
from tests.kits.kube_objects import Json, job, meta, node, pod_spec
from tests.unit.collectors.kubernetes.view import Seen, reasons, row

EXCLUDE, WINDOW = "gpu-autopilot.io/exclude", "gpu-autopilot.io/window"
NIGHT = "Mon-Sun 01:00-05:00"


def _namespace(name: str = "team", **notes: str) -> Json:
    return {"kind": "Namespace", "metadata": meta(name, uid=f"ns-{name}", annotations=notes)}


def _at(hour: int) -> float:
    """A time of a Wednesday, UTC."""
    return datetime(2026, 11, 25, hour, tzinfo=UTC).timestamp()


def _excluded(seen: Seen, *objects: Json, gone: tuple[Json, ...] = ()) -> bool:
    return bool(row(seen.tables(*objects, gone=gone)[1], "team/a")["excluded"])


@pytest.mark.parametrize(
    ("notes", "excluded"),
    [
        ({}, False),
        ({EXCLUDE: "false"}, False),
        ({EXCLUDE: "true"}, True),
        ({EXCLUDE: "True "}, True),
        ({EXCLUDE: "on"}, True),
        ({WINDOW: "when it rains"}, True),
    ],
)
def test_a_namespace_is_left_alone_when_it_says_so_or_says_garbage(notes: dict[str, str], excluded: bool) -> None:
    """The work of the namespace is excluded; of another namespace it is not."""
    other = job("b", namespace="other", suspend=True)
    seen = Seen(node("n1"), _namespace(**notes), job("a", suspend=True), other)
    assert _excluded(seen) == excluded
    assert not row(seen.tables()[1], "other/b")["excluded"]


def test_garbage_on_a_namespace_is_a_gap_that_names_it() -> None:
    """With the value, what is allowed, and what follows."""
    seen = Seen(node("n1"), _namespace(**{EXCLUDE: "on"}), _namespace("other", **{WINDOW: "late"}))
    told = reasons(seen.batch(), "opt-out")
    assert told == [
        f"namespace/other: {WINDOW}: 'late' is not understood; write for example 'Mon-Fri 08:00-18:00 +01:00'; all its "
        "work is left alone",
        f"namespace/team: {EXCLUDE}: 'on' is not allowed; it takes true or false; all its work is left alone",
    ]


def test_an_object_cannot_lift_what_its_namespace_says() -> None:
    """Neither by `exclude` nor by a window that is open; it can add to it."""
    lifted = job("a", suspend=True, annotations={EXCLUDE: "false", WINDOW: "Mon-Sun 00:00-24:00"})
    assert _excluded(Seen(node("n1"), _namespace(**{EXCLUDE: "true"}), lifted))
    added = job("a", suspend=True, annotations={EXCLUDE: "true"})
    assert _excluded(Seen(node("n1"), _namespace(**{EXCLUDE: "false"}), added))


@pytest.mark.parametrize("on", ["namespace", "object"])
def test_a_window_opens_and_closes_with_the_clock(on: str) -> None:
    """Outside of it the work is left alone, although nothing in the cluster changed."""
    notes = {WINDOW: NIGHT}
    work = job("a", suspend=True, annotations=notes if on == "object" else {})
    seen = Seen(node("n1"), _namespace(**(notes if on == "namespace" else {})), work)
    found = []
    for hour in (0, 1, 4, 5):
        seen.now_s = _at(hour)
        found.append(_excluded(seen))
    assert found == [True, False, False, True]


def test_a_window_of_an_object_that_is_not_understood_protects_it() -> None:
    """And it is a gap of that object, not a problem of its contract."""
    seen = Seen(node("n1"), _namespace(), job("a", suspend=True, annotations={WINDOW: "18-6"}))
    assert _excluded(seen)
    (reason,) = reasons(seen.batch(), "window")
    assert reason.startswith(f"team/a: {WINDOW}: '18-6' is not understood")
    assert reasons(seen.batch(), "contract") == []


def test_changes_of_a_namespace_are_followed() -> None:
    """The annotation comes and goes, and the namespace is replaced by one of its name."""
    seen = Seen(node("n1"), _namespace(), job("a", suspend=True))
    assert not _excluded(seen)
    assert _excluded(seen, _namespace(**{EXCLUDE: "true"}))
    assert not _excluded(seen, _namespace())
    assert _excluded(seen, _namespace(**{EXCLUDE: "true"}))
    assert not _excluded(seen, gone=(_namespace(**{EXCLUDE: "true"}),))


def test_without_the_right_to_read_namespaces_it_is_a_gap() -> None:
    """The rest of the view is whole; what namespaces say is not known, and that is told."""
    seen = Seen(node("n1"), job("a", suspend=True))
    seen.api.refuse = {"list namespaces": ApiError(403, "403 no"), "watch namespaces": ApiError(403, "403 no")}
    batch = seen.batch()
    assert batch.work_list is not None
    assert batch.work_list.complete
    assert "no permission" in reasons(batch, NAMESPACES.title)[0]


def test_an_approval_on_work_or_a_namespace_decides_nothing_and_says_so() -> None:
    """Who may annotate a Job is not thereby an approver. The work is not left alone for it."""
    approve, reject = "gpu-autopilot.io/approve", "gpu-autopilot.io/reject"
    seen = Seen(node("n1"), _namespace(**{reject: "yes"}), job("a", suspend=True, annotations={approve: "yes"}))
    assert not _excluded(seen)
    assert reasons(seen.batch(), "approval") == [
        f'namespace/team: {reject} decides nothing here; {EXCLUDE}: "true" keeps the autopilot away',
        f"team/a: {approve} decides nothing here; annotate the Recommendation: kubectl get recommendations",
    ]


APPROVE = "gpu-autopilot.io/approve"


@pytest.mark.parametrize(
    ("on_namespace", "on_job", "approves"),
    [
        ({}, {APPROVE: "yes"}, "annotation of a"),
        ({APPROVE: " Yes"}, {}, "annotation of namespace team"),
        ({}, {APPROVE: "maybe"}, ""),
        ({APPROVE: "yes"}, {"gpu-autopilot.io/reject": "yes"}, "annotation of namespace team"),
        ({}, {}, ""),
    ],
)
def test_owners_approve_where_the_operator_lets_them(
    on_namespace: dict[str, str], on_job: dict[str, str], approves: str
) -> None:
    """By the object itself or by its namespace; of another namespace nothing is approved."""
    options = Options(approvals=True)
    work = job("a", suspend=True, annotations=on_job), job("b", namespace="other", suspend=True)
    seen = Seen(node("n1"), _namespace(**on_namespace), *work, options=options)
    table = seen.tables()[1].workloads
    uid = dict(zip(table.id.tolist(), table.uid.tolist(), strict=True))["team/a"]
    assert seen.collector.approved() == ({uid: approves} if approves else {})
    plain = Seen(node("n1"), _namespace(**on_namespace), *work)
    plain.tables()
    assert plain.collector.approved() == {}


def test_an_approval_ends_with_its_annotation() -> None:
    """Taken off the Job, or off the namespace."""
    seen = Seen(node("n1"), _namespace(**{APPROVE: "yes"}), job("a", suspend=True), options=Options(approvals=True))
    seen.tables()
    assert len(seen.collector.approved()) == 1
    seen.tables(_namespace())
    assert seen.collector.approved() == {}


def test_a_value_that_approves_nothing_is_named() -> None:
    """It takes yes, and nothing else."""
    given = job("a", suspend=True, annotations={APPROVE: "always"})
    batch = Seen(node("n1"), given, options=Options(approvals=True)).batch()
    assert reasons(batch, "approval") == [f"team/a: {APPROVE}: 'always' is not allowed; it takes yes"]


@pytest.mark.parametrize(
    ("notes", "signal", "said"),
    [
        (
            {EXCLUDE: "on"},
            "opt-out",
            "team/chat: gpu-autopilot.io/exclude: 'on' is not allowed; it takes true or false",
        ),
        ({WINDOW: "late"}, "opt-out", "team/chat: gpu-autopilot.io/window: 'late' is not understood"),
        ({"gpu-autopilot.io/approve": "yes"}, "approval", "team/chat: gpu-autopilot.io/approve decides nothing here"),
        ({EXCLUDE: "true"}, "opt-out", ""),
    ],
)
def test_what_a_service_says_and_is_not_understood_is_named(notes: dict[str, str], signal: str, said: str) -> None:
    """It is not scaled then, and its owner learns why."""
    data = meta("chat", "team", annotations=notes, generation=1)
    spec = {"replicas": 1, "template": {"metadata": {"labels": {"app": "chat"}}, "spec": pod_spec(1)}}
    service = {"kind": "Deployment", "metadata": data, "spec": spec, "status": {"readyReplicas": 1}}
    told = reasons(Seen(node("n1"), _namespace(), service).batch(), signal)
    assert [each.startswith(said) for each in told] == [True] * bool(said)
