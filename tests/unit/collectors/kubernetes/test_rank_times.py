"""Busy times of ranks, from the annotations of their pods."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from autopilot.contract.annotations import BUSY, HEARTBEAT, PAUSED, STEP
from autopilot.core.model.ranks import RankTable
from collectors.kubernetes.rank_times import NO_RANK, rank_time
from tests.kits.kube_objects import node, pod
from tests.unit.collectors.kubernetes.view import NOW_S, Seen


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"busy_s": 0.43127, "stage": 1, "rank": 5}', (0.4313, 1, 5)),
        ('{"busy_s": 2}', (2.0, -1, -1)),
        ('{"busy_s": 2, "stage": -7, "rank": 1e30}', (2.0, -1, -1)),
        ('{"busy_s": -1, "stage": 1}', NO_RANK),
        ('{"busy_s": NaN}', NO_RANK),
        ('{"busy_s": "2"}', NO_RANK),
        ("2.0", NO_RANK),
        ("", NO_RANK),
        ("\ud800", NO_RANK),
    ],
)
def test_a_report_is_read_or_counts_as_none(text: str, found: tuple[float, int, int]) -> None:
    """A time is above 0; stage and rank may be left out."""
    told = rank_time(text)
    assert tuple(told) == pytest.approx(found, nan_ok=True)


def test_each_gpu_of_a_reporting_pod_has_a_row_while_its_heartbeat_is_fresh() -> None:
    """Not for pods without a report, on pause, or with an old heartbeat."""
    seen = Seen(node("n", 8))
    beat = {HEARTBEAT: f"{NOW_S}", STEP: "7", BUSY: '{"busy_s": 0.5, "stage": 1, "rank": 3}'}
    silent = {HEARTBEAT: f"{NOW_S}", STEP: "7"}
    notes = {"a": beat, "b": silent, "c": beat | {PAUSED: "true"}, "d": beat | {HEARTBEAT: f"{NOW_S - 400.0}"}}
    pods = [pod(name, 2, node="n", annotations=each) for name, each in notes.items()]

    def ranks(*objects: dict[str, Any]) -> RankTable:
        work = seen.batch(*objects).work
        assert work is not None
        return work.ranks

    table = ranks(*pods)
    assert [len(set(table.id.tolist())), table.rank.tolist(), table.stage.tolist()] == [2, [3, 3], [1, 1]]
    assert table.busy_s.tolist() == [0.5, 0.5]
    seen.now_s += 301.0
    assert not len(ranks().id)
    assert isnan(NO_RANK.busy_s)
