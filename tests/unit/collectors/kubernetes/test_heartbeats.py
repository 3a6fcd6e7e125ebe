"""Heartbeats of pods: work whose heartbeat is old counts as work that does not save."""

from __future__ import annotations

from autopilot.contract.annotations import HEARTBEAT, HEARTBEAT_OLD_S
from tests.kits.kube_objects import node, pod
from tests.unit.collectors.kubernetes.view import NOW_S, Seen

SAVES = {"gpu-autopilot.io/checkpoint-on-request": "true", "gpu-autopilot.io/checkpoint-write-s": "30"}


def saving(*beats: str | None) -> bool:
    """Whether a gang of pods with these heartbeats counts as saving."""
    pods = [
        pod(f"p{number}", 1, node="n", annotations={**SAVES, **({} if beat is None else {HEARTBEAT: beat})})
        for number, beat in enumerate(beats)
    ]
    _, work = Seen(node("n"), *pods).tables()
    return bool(work.workloads.checkpoint_on_request.all())


def test_an_old_heartbeat_means_that_it_does_not_save() -> None:
    """Work that reports none is not judged, and neither is a text that is no number."""
    fresh, old = f"{NOW_S - 60.0:.3f}", f"{NOW_S - HEARTBEAT_OLD_S - 1.0:.3f}"
    assert saving(fresh)
    assert not saving(old)
    assert saving(None)
    assert saving("soon")


def test_a_time_that_is_none_is_named() -> None:
    """A heartbeat or a checkpoint with an invalid time is a gap."""
    notes = {HEARTBEAT: "soon", "gpu-autopilot.io/last-checkpoint": "2026-01-01"}
    gaps = Seen(node("n"), pod("p", 1, node="n", annotations=notes)).batch().gaps
    reasons = {each.signal: each.reason for each in gaps}
    assert reasons["heartbeat"].startswith(f"{HEARTBEAT}='soon' is no time in seconds since 1970")
    assert "'2026-01-01' is no time" in reasons["last-checkpoint"]


def test_a_heartbeat_grows_old_without_any_event() -> None:
    """The row is made again when its time has come."""
    notes = {**SAVES, HEARTBEAT: f"{NOW_S:.3f}"}
    seen = Seen(node("n"), pod("p", 1, node="n", annotations=notes))
    found = []
    for later_s in (0.0, HEARTBEAT_OLD_S, HEARTBEAT_OLD_S + 1.0, HEARTBEAT_OLD_S + 60.0):
        seen.now_s = NOW_S + later_s
        work = seen.batch().work
        assert work is not None
        found.append(bool(work.workloads.checkpoint_on_request[0]))
    assert found == [True, True, False, False]
