"""What was foreseen of a service, as the report shows it: what stood at each time, never what was known later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.app.runs.recorder import DecisionRecorder
from autopilot.app.runs.wiring import Managed, foreseers
from autopilot.core.model.forecast import TOKENS, Forecasts
from autopilot.core.model.snapshot import ServiceTable, empty
from tests.kits.cluster_kit import cluster_of, inventory, make_jobs
from tests.kits.core_world import decide, world
from tests.kits.demand_world import Growing, forecast
from tests.kits.policies import simulated


def test_the_band_at_a_time_is_the_last_one_that_was_made_by_then() -> None:
    """Its highest level, at the nearest horizon; NaN before the first, and where the model abstains."""
    recorder = DecisionRecorder()
    for now_s, peak in ((60.0, (1.0, 2.0, 3.0)), (120.0, (1.0, 2.0, float("nan"))), (180.0, (1.0, 2.0, 5.0))):
        made = (forecast({"chat": peak}, now_s), forecast({"chat": 99.0}, now_s, kind=TOKENS))
        observation = replace(world("1x8", [], now_s), forecasts=Forecasts(demand=made))
        for _ in range(2):
            recorder.on_tick(observation, decide(observation).decision)
    band, words = recorder.foreseen("chat", np.array([0.0, 60.0, 119.0, 130.0, 500.0]))
    assert band is not None
    np.testing.assert_array_equal(band, [np.nan, 3.0, 3.0, np.nan, 5.0])
    assert words == "0.99 of the peaks within 2 min"
    assert recorder.foreseen("other", np.array([0.0])) == (None, "")


POLICIES = {
    "autopilot": simulated(),
    "recommend": simulated("recommend"),
    "reactive": simulated(modes__scale_ahead="off"),
}


def test_demand_is_foreseen_where_somebody_may_act_on_it() -> None:
    """The shipped forecaster beside services, none without them or with the action switched off, another if it is
    given.
    """
    cluster = cluster_of(make_jobs([(0, 100, 1)]), inventory(1, 4))
    services = {"services": lambda _now_s: empty(ServiceTable)}
    given = Growing()
    for policy, more, names in (
        ("autopilot", services, ["bursts"]),
        ("recommend", services, ["bursts"]),
        ("reactive", services, []),
        ("autopilot", {}, []),
        ("autopilot", services | {"demand": given}, ["growing"]),
    ):
        managed = Managed(name=policy, policy=POLICIES[policy], **more)
        assert [forecaster.name for forecaster in foreseers(cluster, managed)[1:]] == [
            *names,
            "demand-mix",
            "colocation",
            "stragglers",
            "interference",
        ]
