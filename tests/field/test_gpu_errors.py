"""Errors of GPUs, as their exporter shows them: the last code only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import yaml

from autopilot.core.model.records import Batch
from autopilot.core.recovery.cordon import Cordon
from collectors.exporter import ExporterCollector, Target
from tests.kits.field_kit import FOLDER, Json, Played, exposition, objects_of, play, play_objects
from tests.kits.kube_objects import EPOCH_S


def cordons(played: Played) -> list[bool]:
    """Directions of the cordons of node-a that were instructed."""
    found = [each.operation for _, each in played.sent if each.subject.name == "node-a"]
    return [each.on for each in found if isinstance(each, Cordon)]


@pytest.mark.parametrize(("then", "opens"), [("then154", False), ("then45", False), ("then0", True)])
def test_a_later_code_opens_no_node_that_a_fatal_one_closed(then: str, *, opens: bool) -> None:
    """79, and then what follows from it or from the eviction (NVIDIA/DCGM#235)."""
    played = play("14c-uncordon", "objects.yaml", f"{then}.yaml", ticks=10, step_s=60.0, effects=True)
    assert cordons(played) == ([True, False] if opens else [True])
    assert bool(played.snapshot.nodes.cordoned[0]) is not opens


def test_a_code_that_needs_a_look_keeps_new_work_away_and_is_named() -> None:
    """154 says that another recovery is needed now, not which one."""
    played = play("14-xid-154", "objects.yaml", "code154.yaml", ticks=4)
    assert played.said("gpu_out_of_use GPU-0*16a.*3$")
    assert not played.accepted("evict")
    assert not played.sent
    assert play("14-xid-154", "objects.yaml", "code79.yaml", ticks=4).accepted("cordon", "node-a")


@pytest.mark.parametrize("code", ["code0", "code45"])
def test_the_trace_of_a_crash_takes_nothing_out_of_use(code: str) -> None:
    """45 on eight idle GPUs (NVIDIA/NVSentinel#1629)."""
    played = play("16-xid45", "objects.yaml", f"{code}.yaml", ticks=4)
    assert [at_s for at_s, _ in played.accepted("admit", "next-job")][-1] == 90.0
    assert not played.waits()


CLOSED = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]


def _node(boot: str, *, closed: bool = False) -> Json:
    (node, *_) = objects_of(FOLDER / "14c-uncordon" / "objects.yaml")
    spec = {"unschedulable": closed, "taints": CLOSED if closed else []}
    return {**node, "spec": spec, "status": node["status"] | {"nodeInfo": {"bootID": boot}}}


def _history(codes: Sequence[int], change: Mapping[float, Sequence[Json]] | None = None) -> Played:
    """GPU 3 of a node that works shows these codes, one each minute; -1: it shows nothing."""
    _, *others = objects_of(FOLDER / "14c-uncordon" / "objects.yaml")
    values = {"PROF_SM_ACTIVE": 0.5, "DEV_FB_USED": 60000, "DEV_XID_ERROR": 0}
    changes = [
        {"at_s": 60.0 * at, "node": "node-a", "gpus": [3], "drop": code < 0, "values": {"DEV_XID_ERROR": code}}
        for at, code in enumerate(codes)
    ]
    gpus = [{"node": "node-a", "id": "b7", "count": 8, "pod": "team/train-0", "values": values}]
    spec = {"gpus": gpus, "changes": [*changes, {"at_s": 120.0, "node": "node-a", "pod": ""}]}
    return play_objects([_node("1"), *others], spec, ticks=len(codes), step_s=60.0, effects=True, change=change)


BOOT: Mapping[float, Sequence[Json]] = {300.0: [_node("2", closed=True)]}
OPENED: Mapping[float, Sequence[Json]] = {300.0: [_node("1")]}


@pytest.mark.parametrize(
    ("codes", "change", "done", "bad"),
    [
        pytest.param((0, 79, 154, 45, 31, 13, 43, 95), {}, [True], True, id="one lesser code after the other"),
        pytest.param((0, 151, 999, 45, 45, 45, 45), {}, [True], True, id="another fatal code, then an unknown one"),
        pytest.param((0, 79, 79, -1, -1, 45, 45, 45), {}, [True], True, id="it shows nothing for a while"),
        pytest.param((0, 154, 154, 79, 45, 45, 45), {}, [True], True, id="the fatal code comes second"),
        pytest.param((0, 95, 95, 45, 45, 45, 45), {}, [], True, id="a reset is needed: the node stays open"),
        pytest.param((0, 45, 31, 45, 13, 45), {}, [], False, id="codes of applications"),
        pytest.param((0, 79, 79, 45, 45, 45, 45, 45), BOOT, [True, False], False, id="its node boots"),
        pytest.param((0, 79, 79, 79, 79, 45, 45, 45), OPENED, [True], False, id="a person opens it"),
        pytest.param((0, 79, 79, 79, 79, 79, 45, 45), OPENED, [True], True, id="a person opens it too early"),
    ],
)
def test_a_lesser_code_clears_nothing(
    codes: Sequence[int], change: Mapping[float, Sequence[Json]], done: list[bool], *, bad: bool
) -> None:
    """The gravest code counts until the GPU shows 0, its node boots, or a person opens the node."""
    played = _history(codes, change)
    assert cordons(played) == done
    assert bool([each for each in played.ticks[-1][2].notes if each.code == "gpu_out_of_use"]) is bad


WORKS: Json = {"PROF_SM_ACTIVE": [0.5, 0.8], "PROF_DRAM_ACTIVE": [0.2, 0.4], "DEV_POWER_USAGE": [400, 500]}


class Second(ExporterCollector):
    """Another source that reads a node through its own exporter."""

    name = "second"

    def __init__(self, spec: Json, node: str) -> None:
        super().__init__(
            [Target(f"http://{node}/")], lambda _: exposition(spec, node, self.at_s).encode(), interval_s=1.0
        )

    def collect(self, now_s: float) -> Batch:
        """As of now."""
        self.at_s = now_s - EPOCH_S
        return replace(super().collect(now_s), source=self.name)


def _doubted(other: Json, then: Json | None) -> Played:
    """An exporter shows XID 79 on GPU 3 of a node; a second source measures `other` there, and `then`."""
    shown = yaml.safe_load((FOLDER / "14-xid-154" / "code79.yaml").read_text("utf-8"))
    seen: Json = {"gpus": [{**shown["gpus"][0], "values": other}], "changes": []}
    if then is not None:
        seen["changes"] = [{"at_s": 60, "node": "node-a", "gpus": [3], **then}]
    objects = objects_of(FOLDER / "14-xid-154" / "objects.yaml")
    return play_objects(objects, shown, ticks=12, step_s=15.0, others=[Second(seen, "node-a")])


@pytest.mark.parametrize(
    ("other", "then", "done"),
    [
        pytest.param(WORKS, None, [], id="activity, traffic and power of work"),
        pytest.param(WORKS | {"DEV_XID_ERRORS": 0}, None, [], id="and no error"),
        pytest.param(WORKS | {"DEV_XID_ERRORS": 79}, None, [True], id="the same error"),
        pytest.param(WORKS | {"DEV_POWER_USAGE": [118, 124]}, None, [True], id="power without work"),
        pytest.param(WORKS | {"PROF_DRAM_ACTIVE": 0}, None, [True], id="no traffic"),
        pytest.param({"PROF_SM_ACTIVE": [0.5, 0.8]}, None, [True], id="activity alone"),
        pytest.param({"PROF_SM_ACTIVE": 0.6, "PROF_DRAM_ACTIVE": 0.3, "DEV_POWER_USAGE": 450}, None, [True], id="old"),
        pytest.param(WORKS, {"drop": True}, [True], id="it falls silent"),
    ],
)
def test_a_lost_gpu_that_another_source_measures_at_work_is_in_doubt(
    other: Json, then: Json | None, done: list[bool]
) -> None:
    """All evidence must agree against XID 79; then nothing is stopped, and a gap names the exporter of the error."""
    played = _doubted(other, then)
    assert cordons(played)[:1] == done
    assert bool(played.accepted("evict")) is bool(done)
    told = [each for each in played.gaps() if "shows XID 79 while second measures" in each.reason]
    assert told or done
    assert {each.source for each in told} <= {"exporter"}
