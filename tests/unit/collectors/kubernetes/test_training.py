"""Checkpoints and heartbeats by metric in the price of a stop: beside annotations, and without them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest

from autopilot.contract.annotations import HEARTBEAT, HEARTBEAT_OLD_S
from autopilot.core.planning.losses import stop_losses
from collectors.promql import Answered, AnswerError, Labels, Row
from collectors.training import ASK_S, CHECKPOINT, KEPT_S, NOBODY, Told, TrainingMetrics
from tests.kits.kube_objects import EPOCH_S, node, pod
from tests.unit.collectors.kubernetes.view import Seen, row

DAY_S = 86_400.0
BEGUN_S = EPOCH_S
NOW_S = EPOCH_S + 7200.0
NOTED = "gpu-autopilot.io/last-checkpoint"
SAVES = {"gpu-autopilot.io/checkpoint-on-request": "true", "gpu-autopilot.io/checkpoint-write-s": "30"}
POD = ("team", "p0")


class Telling:
    """A source of the metrics of training programs."""

    def __init__(self, told: Mapping[tuple[str, str], Told] = NOBODY) -> None:
        self.now: Mapping[tuple[str, str], Told] = told

    def training(self, now_s: float) -> Mapping[tuple[str, str], Told]:
        """What it was given."""
        return self.now


def gang(*annotations: dict[str, str]) -> tuple[Seen, Telling]:
    """Pods p0, p1, ... of one gang that has run for two hours, and the source of their metrics."""
    owner = {"kind": "PyTorchJob", "name": "g", "uid": "g", "controller": True, "apiVersion": "kubeflow.org/v1"}
    pods = [
        pod(f"p{place}", 1, node="n", owner=owner, annotations={**SAVES, **notes})
        for place, notes in enumerate(annotations)
    ]
    seen, source = Seen(node("n"), *pods), Telling()
    seen.now_s = NOW_S
    seen.collector.join(source)
    return seen, source


def shown(seen: Seen) -> dict[str, Any]:
    """The row of the gang."""
    work = seen.batch().work
    assert work is not None
    return row(work, "team/g")


@pytest.mark.parametrize(
    ("noted_s", "told_s", "counts_s"),
    [
        (None, NOW_S - 600, NOW_S - 600),  # by metric alone
        (NOW_S - 600, None, NOW_S - 600),  # by annotation alone
        (NOW_S - 600, NOW_S - 1800, NOW_S - 1800),  # the older one
        (NOW_S - 1800, NOW_S - 600, NOW_S - 1800),
        (NOW_S - 600, NOW_S + 60, NOW_S - 600),  # a metric of the future
        (NOW_S - 600, 1000 * NOW_S, NOW_S - 600),  # in milliseconds
        (NOW_S - 600, BEGUN_S - 60, NOW_S - 600),  # of a pod that had its name before
        (NOW_S + 600, NOW_S - 1800, NOW_S - 1800),  # an annotation of the future
        (BEGUN_S - 60, NOW_S - 1800, NOW_S - 1800),
        (None, NOW_S + 60, nan),
        (None, BEGUN_S - 60, nan),
    ],
)
def test_the_older_time_that_can_be_true_counts(noted_s: float | None, told_s: float | None, counts_s: float) -> None:
    """The price of a stop follows it; what is unknown costs all since the start."""
    seen, source = gang({} if noted_s is None else {NOTED: f"{noted_s:.3f}"})
    source.now = {POD: Told(saved_s=told_s)}
    assert shown(seen)["last_checkpoint_s"] == pytest.approx(counts_s, nan_ok=True)
    price = stop_losses(seen.snapshot(), NOW_S, np.zeros(1)).worst_gpu_s[0]
    assert price == pytest.approx(NOW_S - (BEGUN_S if isnan(counts_s) else counts_s))


def test_one_pod_of_a_gang_saves_for_all() -> None:
    """As with annotations: the newest checkpoint of any pod."""
    seen, source = gang({}, {})
    source.now = {POD: Told(saved_s=NOW_S - 900), ("team", "p1"): Told(saved_s=NOW_S - 300)}
    assert shown(seen)["last_checkpoint_s"] == NOW_S - 300


def test_the_row_follows_the_metric_without_any_event() -> None:
    """A metric that is gone is unknown again."""
    seen, source = gang({})
    found = []
    for told_s in (None, NOW_S - 900, NOW_S - 300, None):
        source.now = {POD: Told(saved_s=told_s)} if told_s is not None else {}
        found.append(shown(seen)["last_checkpoint_s"])
    assert found == pytest.approx([nan, NOW_S - 900, NOW_S - 300, nan], nan_ok=True)


def test_a_heartbeat_by_metric_grows_old() -> None:
    """Then the work counts as work that does not save, until it makes progress again."""
    seen, source = gang({})
    assert shown(seen)["checkpoint_on_request"]  # never reported: not judged
    found = []
    for later_s, beat_s in ((0, NOW_S), (200, NOW_S + 180), (501, NOW_S + 180), (530, NOW_S + 525)):
        seen.now_s, source.now = NOW_S + later_s, {POD: Told(beat_s=beat_s)}
        found.append(bool(shown(seen)["checkpoint_on_request"]))
    assert found == [True, True, False, True]


@pytest.mark.parametrize("old", ["annotation", "metric"])
def test_an_old_heartbeat_of_either_kind_counts(old: str) -> None:
    """Whether it still saves is in doubt, and doubt makes a stop expensive."""
    old_s, fresh_s = NOW_S - HEARTBEAT_OLD_S - 60, NOW_S - 10
    seen, source = gang({HEARTBEAT: f"{old_s if old == 'annotation' else fresh_s:.3f}"})
    source.now = {POD: Told(beat_s=old_s if old == "metric" else fresh_s)}
    assert not shown(seen)["checkpoint_on_request"]


class Answers:
    """A Prometheus with fixed answers: time of the checkpoint by labels, and no heartbeat."""

    def __init__(self, *rows: tuple[Labels, float]) -> None:
        self.rows, self.asked, self.fails, self.partial = list(rows), 0, False, ""

    def __call__(self, query: str, now_s: float) -> Answered:
        self.asked += 1
        if self.fails:
            raise OSError("connection refused")
        assert 'cluster="a"' in query
        rows = self.rows if "checkpoint" in query else []
        return Answered([Row(labels, (now_s, str(value))) for labels, value in rows], [], self.partial)


def test_labels_of_the_program_name_the_pod() -> None:
    """Where two targets report a pod, the older time counts; what is no time is not taken."""
    own = Labels(namespace="monitoring", pod="sidecar", exported_namespace="team", exported_pod="p0")
    answers = Answers(
        (own, 500.0),
        (Labels(namespace="team", pod="p0"), 400.0),
        (Labels(namespace="team", pod="p1"), nan),
        (Labels(namespace="team", pod="p2"), inf),
        (Labels(namespace="team", pod="p3"), 0.0),
        (Labels(pod="p4"), 400.0),
    )
    metrics = TrainingMetrics(answers, ('cluster="a"',))
    metrics.ask(0.0)
    assert metrics.told(0.0) == {POD: Told(saved_s=400.0)}
    assert metrics.homeless == (CHECKPOINT,)


def test_an_answer_counts_for_a_while_where_prometheus_fails() -> None:
    """It is asked again when that is due; after five minutes without an answer nothing is known."""
    answers = Answers((Labels(namespace="team", pod="p0"), 400.0))
    metrics = TrainingMetrics(answers, ('cluster="a"',))
    metrics.ask(0.0)
    first = metrics.told(0.0)
    metrics.ask(ASK_S - 1)
    assert answers.asked == 2
    metrics.ask(ASK_S)
    assert metrics.told(ASK_S) is first
    answers.fails = True
    with pytest.raises(OSError, match="refused"):
        metrics.ask(2 * ASK_S)
    assert metrics.told(ASK_S + KEPT_S) is first
    assert metrics.told(ASK_S + KEPT_S + 1) == {}


def test_an_answer_of_a_part_of_the_data_is_none() -> None:
    """The older time of a pod may be in the missing part: the last whole answer counts, for a while."""
    answers = Answers((Labels(namespace="team", pod="p0"), 400.0))
    metrics = TrainingMetrics(answers, ('cluster="a"',))
    metrics.ask(0.0)
    whole = metrics.told(0.0)
    answers.rows, answers.partial = [(Labels(namespace="team", pod="p0"), 900.0)], "a store is away"
    with pytest.raises(AnswerError, match="a store is away"):
        metrics.ask(ASK_S)
    assert metrics.told(ASK_S) is whole
