"""What the burst benchmarks count, and how they judge it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.burst_fill import WITHOUT
from benchmarks.burst_fill import judge as judge_fill
from benchmarks.burst_full import judge as judge_full
from benchmarks.burst_runs import (
    AUTOPILOT,
    FROM_S,
    REACTIVE,
    STATIC,
    TO_S,
    TRUE_DEMAND,
    Call,
    Row,
    Window,
    offered_gpu_h,
    world_of,
)
from models.burst_demand import HORIZONS_S
from simulator.running.oracle import DemandOracle
from simulator.world.facts import Evicting, Stopped, Why
from simulator.world.work import Jobs, Shape
from tests.kits.core_world import world
from tests.kits.demand_world import serving

ROW = Row(REACTIVE, 1, 1.0, 1e6, 1e4, 1000.0, 1010.0, 5.0, 1400.0, 90.0, 300, 90, 0, 60.0)


def rows(**late: float) -> list[Row]:
    """One row for each run, with that many late requests."""
    names = {"reactive": REACTIVE, "autopilot": AUTOPILOT, "true": TRUE_DEMAND}
    return [replace(ROW, policy=names[name], late=count) for name, count in late.items()]


def test_the_share_of_the_distance_and_the_lost_work_decide() -> None:
    """Seven tenths closed is enough, half is not; too much lost work or a broken invariant is a miss."""
    assert judge_full(rows(reactive=1000.0, autopilot=300.0, true=0.0))
    assert not judge_full(rows(reactive=1000.0, autopilot=500.0, true=0.0))
    lossy = [replace(row, lost_gpu_h=40.0) for row in rows(reactive=1000.0, autopilot=300.0, true=0.0)]
    assert not judge_full(lossy)
    assert not judge_full([replace(row, violated=1) for row in rows(reactive=1000.0, autopilot=300.0, true=0.0)])


@pytest.mark.parametrize(
    ("change", "kept"),
    [({}, True), ({"useful_gpu_h": 300.0}, False), ({"late": 3e4}, False), ({"stops": 300}, False)],
)
def test_filling_is_judged_by_gain_late_requests_and_stops(change: dict[str, float], kept: bool) -> None:
    """Each of the three can miss its goal."""
    static = replace(ROW, policy=STATIC, useful_gpu_h=190.0, idle_gpu_h=1000.0, stops=0)
    ours = replace(ROW, policy=AUTOPILOT, stops=150)
    alone = replace(ours, policy=WITHOUT, useful_gpu_h=0.0, jobs=0.0)
    changed = replace(ours, **change)  # type: ignore[arg-type]
    assert judge_fill([static, ROW, changed, alone]) is kept


def test_only_the_second_day_counts() -> None:
    """Progress, held time and stops outside the window are cut off; lost progress is taken off."""
    jobs = Jobs()
    jobs.add("j", "t", Shape(4, 4, 4), 0.0, 1e6)
    window = Window(jobs)
    full = 4000
    window.on_stopped(
        Stopped(
            FROM_S + 100.0, 0, 1, Why.PREEMPT, FROM_S - 200.0, FROM_S - 100.0, FROM_S + 100.0, 200.0, 30.0, full, full
        )
    )
    assert window.held == 400.0
    assert window.useful == 100.0 * 4 - 30.0 * 4
    assert window.lost == 120.0
    window.on_stopped(
        Stopped(TO_S + 500.0, 0, 2, Why.END, TO_S + 10.0, TO_S + 20.0, TO_S + 500.0, 480.0, 0.0, full, full)
    )
    assert window.held == 400.0
    window.on_evicting(Evicting(FROM_S - 1.0, 0, 1, Why.MOVE, contract=False, effect=""))
    window.on_evicting(Evicting(FROM_S + 1.0, 0, 1, Why.MOVE, contract=False, effect=""))
    assert (window.stops, window.moves) == (1, 1)


def test_the_true_demand_is_the_highest_minute_to_come() -> None:
    """Every level has it; a longer horizon never sees less; the record satisfies any policy."""
    drawn = world_of(Call(STATIC, 1, 0.0))
    oracle = DemandOracle(drawn.services, HORIZONS_S)
    seen = serving(world("1x8", [], 32_430.0))
    record = oracle.forecast(32_430.0, seen.snapshot).demand[0]
    assert record.made_s == 32_400.0
    assert record.values.shape == (1, 3, 3)
    rates = np.bincount((drawn.services.sources()[0].upto(drawn.services.horizon_s).t_s // 60).astype(int)) / 60
    assert record.values[0, :, 0].tolist() == [rates[540:542].max(), rates[540:545].max(), rates[540:555].max()]
    assert (record.values == record.values[:, :, :1]).all()
    assert record.coverage.min() == 1.0


def test_jobs_are_drawn_at_the_size_asked_for() -> None:
    """Half of the jobs is half of the work, roughly; none is none."""
    assert not len(world_of(Call(STATIC, 1, 0.0)).jobs())
    half = sum(world_of(Call(STATIC, 1, 0.5)).jobs().duration_s)
    assert 0.4 < half / sum(world_of(Call(STATIC, 1)).jobs().duration_s) < 0.6
    assert offered_gpu_h(1) > 3000.0
