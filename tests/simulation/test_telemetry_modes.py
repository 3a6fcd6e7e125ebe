"""Rendered and parsed scrapes, or the same windows filled without the text: the decisions are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.records.journal.observations import ENCODER
from tests.simulation.kit import Moment, Ran, Setup, faulty_world, run

LOST_RATIO = 0.4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[float, tuple[Ran, Ran]]:
    """The same seed under `full` and under `windowed`, by the ratio of scrapes that are lost."""
    world, made = faulty_world(3, tmp_path_factory.mktemp("world"), horizon_min=20), {}
    assert world.faults is not None
    for ratio in (0.0, LOST_RATIO):
        world.faults = replace(world.faults, scrape_loss_ratio=ratio)
        made[ratio] = (run(world, Setup(telemetry="full")), run(world, Setup(telemetry="windowed")))
    return made


@pytest.fixture(params=[0.0, LOST_RATIO], ids=["all scrapes", "lost scrapes"])
def both(request: pytest.FixtureRequest, runs: dict[float, tuple[Ran, Ran]]) -> tuple[Ran, Ran]:
    """With and without lost scrapes."""
    return runs[request.param]


def test_decisions_are_equal(both: tuple[Ran, Ran]) -> None:
    """Tick by tick the same proposals with the same verdicts and numbers, and the same effects in the end."""
    full, windowed = both
    assert len(full.tape.moments) == len(windowed.tape.moments) > 100
    for one, two in zip(full.tape.moments, windowed.tape.moments, strict=True):
        assert one.observation.now_s == two.observation.now_s
        assert ENCODER.encode(one.decision) == ENCODER.encode(two.decision)
        assert one.observation.outcomes == two.observation.outcomes
    assert full.cluster.end_s == windowed.cluster.end_s


def test_the_windows_are_equal(both: tuple[Ran, Ran]) -> None:
    """What the controller sees of the GPUs is the same: samples, ages and grades exactly, values as they are
    printed.
    """
    measured = 0
    for one, two in zip(both[0].tape.moments, both[1].tape.moments, strict=True):
        measured += same_windows(one, two)
    assert measured > 100


def same_windows(one: Moment, two: Moment) -> int:
    """Compare two moments; the number of GPUs with a value."""
    left, right = one.observation.snapshot.telemetry, two.observation.snapshot.telemetry
    assert (left.signals, left.windows_s) == (right.signals, right.windows_s)
    np.testing.assert_array_equal(left.samples, right.samples)
    np.testing.assert_array_equal(left.age_s, right.age_s)
    np.testing.assert_array_equal(left.quality, right.quality)
    for row, name in enumerate(left.signals):
        for mine, other in ((left.mean[row], right.mean[row]), (left.maximum[row], right.maximum[row])):
            np.testing.assert_allclose(mine, other, rtol=2e-3, atol=1e-4, err_msg=name)
    return int(np.isfinite(left.mean[SIGNALS.index("sm_active_ratio")]).sum()) if len(left.signals) else 0


def test_lost_scrapes_are_seen(runs: dict[float, tuple[Ran, Ran]]) -> None:
    """They make windows with fewer samples, and gaps that name the node; without them there is none of either."""
    counts = []
    for ran, _ in runs.values():
        reasons = [gap.reason for moment in ran.tape.moments for gap in moment.observation.gaps]
        samples = np.mean(
            [moment.observation.snapshot.telemetry.samples[-1].mean() for moment in ran.tape.moments[-50:]]
        )
        counts.append((sum(reason == "the scrape got no answer" for reason in reasons), float(samples)))
    assert counts[0][0] == 0 < counts[1][0]
    assert counts[1][1] < 0.8 * counts[0][1]
