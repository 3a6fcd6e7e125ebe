"""Means of the fragmentation index over a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.app.runs.fragmentation_means import HOUR_S, FragmentationMeans
from autopilot.core.intake.signals import UNMEASURED
from autopilot.core.model.forecast import Forecasts
from tests.kits.core_world import world
from tests.kits.expected_world import island_expected


def test_one_look_an_hour_counts() -> None:
    """The first tick of each hour; the parts add up to the index, and hours without a mix count for what is free."""
    means = FragmentationMeans()
    stranded = island_expected(now_s=HOUR_S)
    means.on_tick(replace(world("1x8"), signals=UNMEASURED))  # evidence of nothing
    means.on_tick(replace(stranded, forecasts=Forecasts(), now_s=0.0))
    means.on_tick(stranded)
    means.on_tick(island_expected((), now_s=1.5 * HOUR_S))
    means.on_tick(island_expected((), now_s=2 * HOUR_S))
    (found,) = means.result().values()
    assert (found["looks"], found["known"]) == (3, 2)
    assert found["free_gpus"] == pytest.approx((26 + 26 + 32) / 3)
    assert 0.0 < found["index_ratio"] < found["index_ratio_max"]
    assert found["index_ratio"] == pytest.approx(found["index_ratio_max"] / 2)
    assert sum(found["index_by_cause"].values()) == pytest.approx(found["index_ratio"])


def test_without_a_mix_the_index_is_unknown() -> None:
    """Not zero."""
    means = FragmentationMeans()
    means.on_tick(replace(island_expected(), forecasts=Forecasts()))
    (found,) = means.result().values()
    assert (found["index_ratio"], found["index_by_cause"]) == (None, {})
