"""Which batch has data, and what becomes of one that has none."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.intake.silent import nearest, newest_of, or_gap, problem_of, seen, yields
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.records import Batch, Gap, ServiceSignals, Telemetry
from autopilot.core.model.snapshot import empty


def _telemetry(mean: float, samples: int) -> Telemetry:
    one = np.full((1, 1, 1), mean, np.float32)
    flat = np.zeros(1, np.float32)
    return Telemetry(
        ("sm_active_ratio",),
        (60.0,),
        np.array(["GPU-1"], object),
        one,
        one,
        np.full((1, 1), samples, np.int32),
        flat,
        np.zeros(1, np.int8),
    )


def _services(*names: str) -> ServiceSignals:
    zeros: dict[str, Any] = {each.name: np.zeros(len(names)) for each in fields(ServiceSignals)}
    latencies: ReplicaLatency = empty(ReplicaLatency)
    return ServiceSignals(**zeros | {"service": np.array(names, object), "latencies": latencies})


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (Batch("s", 0.0), False),
        (Batch("s", 0.0, telemetry=_telemetry(np.nan, 0)), False),
        (Batch("s", 0.0, telemetry=_telemetry(0.0, 0)), True),
        (Batch("s", 0.0, telemetry=_telemetry(np.nan, 1)), True),
        (Batch("s", 0.0, services=_services()), False),
        (Batch("s", 0.0, services=_services("chat")), True),
    ],
)
def test_a_batch_has_data_where_it_has_a_value(batch: Batch, *, found: bool) -> None:
    """A value of 0 is one; a table of unknown values, or of nothing, has none, and gets a gap."""
    assert yields(batch) == found
    assert bool(or_gap(batch).gaps) != found


def test_a_batch_is_as_old_as_its_newest_sample() -> None:
    """Not as its reading: an exporter of dead targets answers with the windows of before."""
    telemetry = _telemetry(0.5, 1)
    assert newest_of(Batch("s", 100.0, telemetry=replace(telemetry, age_s=np.array([40.0], np.float32)))) == 60.0
    assert newest_of(Batch("s", 100.0, services=replace(_services("chat"), age_s=np.array([15.0])))) == 85.0
    never = replace(telemetry, age_s=np.array([np.inf], np.float32))
    assert np.isnan(newest_of(Batch("s", 100.0, telemetry=never)))
    assert np.isnan(newest_of(Batch("s", 100.0)))


def test_a_source_without_any_part_has_a_problem() -> None:
    """The gap of the whole source first, else the first one; a part with gaps beside it is none."""
    whole, part = Gap("s", "", "", "refused"), Gap("s", "", "p99", "no series")
    assert problem_of(Batch("s", 0.0, gaps=(part, whole))) == "refused"
    assert problem_of(Batch("s", 0.0, gaps=(part,))) == "no series"
    assert "no data and no reason" in problem_of(Batch("s", 0.0))
    assert problem_of(Batch("s", 0.0, services=_services(), gaps=(whole,))) == ""


def test_a_source_that_says_why_keeps_its_words() -> None:
    """Nothing is added to a reason that is there."""
    batch = Batch("s", 0.0, gaps=(Gap("s", "", "", "it is asleep"),))
    assert or_gap(batch) is batch


def test_the_nearest_names_are_a_few() -> None:
    """In any case of letters, and only where there are any."""
    names = ["a_GPU_x", "other", "gpu_y", "gpu_z", "gpu_w"]
    assert nearest(names, ("gpu",)) == ["a_GPU_x", "gpu_y", "gpu_z"]
    assert seen(nearest(names, ("tpu",))) == ""
    assert seen(["a", "b"]) == "; the nearest names seen: a, b"
