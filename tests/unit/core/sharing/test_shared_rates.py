"""The predicted and the measured rate of work on shares, and what is learned from pairs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.colocation import RULE, Colocation, Mechanism, Pair
from autopilot.core.model.kinds import kind_of
from autopilot.core.model.memory.profiles import LoneProfile
from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.sharing.facts import shared_rates
from autopilot.core.sharing.sharers import observed_pairs
from models.colocation import Colocations
from tests.kits.core_world import snapshot
from tests.kits.shared_gpus import KNOWN, NOW_S, WORK, lone, on_shares, profiles, sharer

NAN = math.nan


def rates(
    snap: ClusterSnapshot, learned: Colocation = RULE, changed: dict[str, LoneProfile] | None = None
) -> list[tuple[float, float]]:
    """(predicted, measured) of each workload, rounded."""
    found = shared_rates(snap, profiles(snap, **KNOWN | (changed or {})), learned, NOW_S)
    return [(round(a, 3), round(b, 3)) for a, b in zip(found.predicted.tolist(), found.measured.tolist(), strict=True)]


def test_a_rate_is_predicted_beside_all_sharers_and_measured_by_steps() -> None:
    """The slowest GPU counts; alone on a shared GPU nothing is lost; waiting work has neither."""
    both = [(0.8, 0.8), (0.8, 0.9), (1.0, NAN), (NAN, NAN)]
    assert str(rates(on_shares())) == str(both)
    assert str(rates(snapshot("1x4", WORK))) == str([(NAN, NAN)] * 4)
    snap = on_shares()
    pair = Pair(kind_of(snap, 0), kind_of(snap, 1), Mechanism.TIME_SLICING, "A100-80GB")
    assert rates(snap, Colocation("m", 0.0, {pair: -0.1}))[0] == (0.7, 0.8)


def column(snap: ClusterSnapshot, table: str, name: str, row: int, value: Any) -> ClusterSnapshot:
    """The snapshot with one other value."""
    values = getattr(getattr(snap, table), name).copy()
    values[row] = value
    return replace(snap, **{table: replace(getattr(snap, table), **{name: values})})


@pytest.mark.parametrize(
    ("snap", "changed", "expected"),
    [
        (on_shares(), {"one": lone(NAN, 1.0)}, (NAN, 0.8)),  # its neighbour's signal is unknown
        (on_shares(), {"one": lone(0.4, 1.0, alone_s=600.0)}, (NAN, 0.8)),
        (on_shares(), {"two": lone(0.5)}, (0.8, NAN)),  # its lone pace is unknown
        (on_shares(), {"two": lone(0.5, 2.0, spread=0.2)}, (0.8, NAN)),  # jobs of that name differ
        (on_shares(), {"two": lone(0.5, 2.0, seen_s=NOW_S - 15 * 86_400.0)}, (NAN, NAN)),  # too old
        (on_shares(sharing=Sharing.WHOLE), {}, (NAN, 0.8)),  # no label proves a mechanism
        (column(on_shares(), "workloads", "start_s", 0, NOW_S - 200.0), {}, (0.8, NAN)),
        (column(on_shares(), "workloads", "steps_per_s", 0, NAN), {}, (0.8, NAN)),
        (column(on_shares(), "placements", "assumed", 0, True), {}, (NAN, 0.8)),  # who is beside it is not known
        (column(on_shares(), "placements", "leaving", 2, True), {}, (1.0, 0.8)),  # its neighbour leaves
    ],
)  # fmt: skip
def test_what_is_not_known_has_no_rate(
    snap: ClusterSnapshot, changed: dict[str, LoneProfile], expected: tuple[float, float]
) -> None:
    """Never 0, and never the one in place of the other."""
    assert rates(snap, changed=changed)[0] == pytest.approx(expected, nan_ok=True)


def test_a_pair_teaches_what_its_progress_shows() -> None:
    """Only where two kinds are alone with each other, both at work for as long as a pace covers."""
    pair = on_shares(sharer("a", [0, 1], 1.4), sharer("b", [0], 0.9), sharer("c", [1], 0.9, named="b"))
    known = profiles(pair, a=lone(0.5, 2.0), b=lone(0.4, 1.0))
    seen = observed_pairs(pair, known, NOW_S)
    assert [(each.pair.own.split("\n")[1], round(each.rate, 2)) for each in seen] == [
        ("a", 0.7),
        ("b", 0.9),
        ("b", 0.9),
    ]
    assert {each.family.count("\n") for each in seen} == {1}
    for other in (
        column(pair, "workloads", "state", 1, State.STARTING),
        column(pair, "workloads", "name", 2, "other"),
        on_shares(sharer("a", [0], 1.4), sharer("b", [0], 0.9), sharer("c", [0], 0.9, named="b")),
    ):
        assert "a" not in [each.pair.own.split("\n")[1] for each in observed_pairs(other, known, NOW_S)]


def test_the_forecaster_looks_once_in_five_minutes() -> None:
    """It learns from the profiles that the controller gives it."""
    snap = on_shares(sharer("a", [0], 1.4), sharer("b", [0], 0.9))
    model = Colocations(lambda: np.random.default_rng(1))
    model.update(NOW_S, snap)
    assert model._rows == []
    model.know(profiles(snap, a=lone(0.5, 2.0), b=lone(0.4, 1.0)))
    for later_s in (299.0, 300.0, 400.0, 600.0):
        model.update(NOW_S + later_s, snap)
    assert len(model._rows) == 4
