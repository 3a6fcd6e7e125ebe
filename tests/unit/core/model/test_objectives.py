"""Which objectives of a service count, and what is made of what is measured against them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.intake.assemble import assemble
from autopilot.core.model.objectives import (
    breached,
    counting,
    declared,
    missed_ratio,
    of_pools,
    over_objective,
    with_pools,
)
from autopilot.core.model.objects import ServingRole
from autopilot.core.model.records import Batch, Work
from autopilot.core.model.snapshot import ServiceTable, make
from tests.kits.core_world import snapshot

NAN = float("nan")
WHOLE, PREFILL, DECODE = ServingRole


def pools(**columns: Any) -> ServiceTable:
    """A service, and the pools of prefill and decode of another one, with the same objectives."""
    usual: dict[str, Any] = {
        "id": ["whole", "prefill", "decode"],
        "uid": ["whole", "prefill", "decode"],
        "role": [WHOLE, PREFILL, DECODE],
        "objective_s": [NAN] * 3,
        "p99_s": [9.0] * 3,
        "violation_ratio": [NAN] * 3,
        "rate_rps": [5.0] * 3,
        "age_s": [1.0] * 3,
        "ttft_objective_s": [0.5] * 3,
        "itl_objective_s": [0.05] * 3,
    }
    table: ServiceTable = make(ServiceTable, **(usual | columns))
    return table


@pytest.mark.parametrize(
    ("ttft_s", "itl_s", "misses"),
    [(1.0, 0.01, ["whole", "prefill"]), (0.1, 0.1, ["whole", "decode"]), (0.5, 0.05, []), (NAN, NAN, [])],
)
def test_each_pool_answers_for_its_own_part(ttft_s: float, itl_s: float, misses: list[str]) -> None:
    """The first token is the work of prefill, the others that of decode; where the role is not known, both count."""
    table = pools(ttft_p99_s=[ttft_s] * 3, itl_p99_s=[itl_s] * 3)
    assert table.id[breached(table)].tolist() == misses
    ratios = over_objective(table)
    assert np.isnan(ratios[0]).all(), "no latency is promised, however long it takes"
    assert np.isnan([ratios[1, 2], ratios[2, 1]]).all()


def test_a_share_of_what_is_late_is_that_of_the_objective_that_is_missed_most() -> None:
    """The other pool's share counts nowhere, and a share that is not measured is said to be unknown."""
    table = pools(recent_ttft_violation_ratio=[0.2] * 3, recent_itl_violation_ratio=[0.3, 0.3, NAN])
    worst, unknown = missed_ratio(table)
    assert worst.tolist() == pytest.approx([0.3, 0.2, NAN], nan_ok=True)
    assert unknown.tolist() == [False, False, True]
    latency = pools(ttft_objective_s=[NAN] * 3, itl_objective_s=[NAN] * 3, recent_violation_ratio=[0.1, NAN, 0.0])
    worst, unknown = missed_ratio(latency)
    assert worst.tolist() == pytest.approx([0.1, NAN, 0.0], nan_ok=True)
    assert not unknown.any(), "none is declared"


def test_what_is_asked_of_the_sources_is_what_counts() -> None:
    """By service: latency, first token, next token."""
    found = declared(pools(ttft_objective_s=[0.5, NAN, 0.5]))
    assert list(found) == ["whole", "decode"]
    assert found["whole"] == pytest.approx((NAN, 0.5, 0.05), nan_ok=True)
    assert found["decode"] == pytest.approx((NAN, NAN, 0.05), nan_ok=True)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"ttft_p99_s": [0.1] * 3}, ["whole itl_p99_s", "decode itl_p99_s"]),
        ({"itl_p99_s": [0.1] * 3}, ["whole ttft_p99_s", "prefill ttft_p99_s"]),
        ({"ttft_p99_s": [0.1] * 3, "itl_p99_s": [0.1] * 3}, []),
        ({"rate_rps": [0.0] * 3}, []),
        (
            {"rate_rps": [0.0] * 3, "age_s": [np.inf] * 3},
            ["whole ttft_p99_s", "prefill ttft_p99_s", "whole itl_p99_s", "decode itl_p99_s"],
        ),
    ],
)
def test_an_objective_that_no_source_measures_is_a_gap(columns: dict[str, Any], named: list[str]) -> None:
    """It names the service, the figure and a metric. A service without requests has nothing to measure."""
    snap = snapshot("1x8")
    work = Work(snap.names.tenants, snap.workloads, snap.placements, pools(**columns), snap.queues)
    gaps = assemble([Batch("cluster", 0.0, work=work)], 0.0)[1]
    assert [f"{gap.object_id} {gap.signal}" for gap in gaps] == named
    assert all("_seconds" in gap.reason for gap in gaps)


SHARE = st.sampled_from((NAN, 0.0, 0.004, 0.3))
TIME_S = st.sampled_from((NAN, 0.01, 0.4, 9.0))
MEASURED = ("p99_s", "ttft_p99_s", "itl_p99_s")
SHARES = ("recent_violation_ratio", "recent_ttft_violation_ratio", "recent_itl_violation_ratio")


@given(st.lists(TIME_S, min_size=3, max_size=3), st.lists(SHARE, min_size=3, max_size=3), st.integers(0, 5))
def test_no_objective_is_met_because_a_figure_vanished(times_s: list[float], shares: list[float], gone: int) -> None:
    """Whatever is missing, a service that was not known to meet its objectives is not known to meet them then."""

    def meets(hidden: int) -> tuple[list[bool], list[bool]]:
        values = [NAN if place == hidden else value for place, value in enumerate([*times_s, *shares])]
        columns = {name: [value] * 3 for name, value in zip((*MEASURED, *SHARES), values, strict=True)}
        table = pools(objective_s=[2.0] * 3, **columns)
        ratios, (worst, unknown) = over_objective(table), missed_ratio(table)
        well = [bool((ratios[counting(table)[:, row], row] <= 1.0).all()) for row in range(3)]
        return well, [bool(not unknown[row] and worst[row] <= 0.01) for row in range(3)]

    for before, after in zip(meets(-1), meets(gone), strict=True):
        assert all(was or not now for was, now in zip(before, after, strict=True))


@given(TIME_S, SHARE, st.sampled_from((0.02, 5.0)))
def test_what_the_other_pool_does_changes_nothing(time_s: float, share: float, objective_s: float) -> None:
    """The figures of first tokens have no say in a pool of decode, nor those of the others in a pool of prefill."""
    plain = pools(ttft_p99_s=[0.4] * 3, itl_p99_s=[0.04] * 3, recent_ttft_violation_ratio=[0.0] * 3)
    ttft, itl = [0.4, 0.4, time_s], [0.04, time_s, 0.04]
    other = pools(
        ttft_p99_s=ttft,
        itl_p99_s=itl,
        ttft_objective_s=[0.5, 0.5, objective_s],
        itl_objective_s=[0.05, objective_s, 0.05],
        recent_ttft_violation_ratio=[0.0, 0.0, share],
        recent_itl_violation_ratio=[NAN, share, NAN],
    )
    assert breached(other).tolist() == breached(plain).tolist() == [False] * 3
    for one, two in zip(missed_ratio(plain), missed_ratio(other), strict=True):
        np.testing.assert_array_equal(one, two)
    assert list(declared(other)) == list(declared(plain))


def test_pools_inside_the_gangs_of_a_service_share_its_fate() -> None:
    """What touches the service touches them, and what is late in one of them is late in it."""
    table = pools(part_of=[-1, 0, 0])
    assert [with_pools(table, rows) for rows in ([0], [1], [])] == [[0, 1, 2], [1], []]
    assert of_pools(table, np.array([False, False, True])).tolist() == [True, False, True]
    assert with_pools(pools(), [0]) == [0]
    assert of_pools(pools(), np.array([False, False, True])).tolist() == [False, False, True]
