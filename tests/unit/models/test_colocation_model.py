"""The model of rates together: what a fit learns, when it serves, and the tables that people measure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.colocation import RULE, Mechanism, Pair
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory.profiles import LoneProfile
from autopilot.core.sharing.sharers import Observed
from models.colocation import LEAST_ROWS, Colocations, fitted, held_out_rates, rates_by, rule_rates
from models.colocation_table import SCHEMA, read_pairs
from tests.kits import core_world

EMPTY = core_world.snapshot("1x1", ())
TURNS = Mechanism.TIME_SLICING


def fresh() -> np.random.Generator:
    """The generator of the gate's bootstrap."""
    return np.random.default_rng(5)


def rows(extra: float, count: int = 240, families: int = 6) -> tuple[Observed, ...]:
    """Pairs whose true rate is that of the rule, less `extra` x the product of the duties, with noise."""
    rng = np.random.default_rng(1)
    duty = rng.uniform(0.1, 0.9, families)
    found = []
    for at in range(count):
        own, other = (int(each) for each in rng.choice(families, 2, replace=False))
        rate = 1.0 - (1.0 + extra) * duty[own] * duty[other] + float(rng.normal(0.0, 0.02))
        mine, theirs = (LoneProfile(1.0, 3600.0, 0.0, duty_ratio=float(duty[each])) for each in (own, other))
        pair = Pair(f"k{own}", f"k{other}", TURNS, "H100")
        found.append(Observed(pair, mine, theirs, min(max(rate, 0.0), 1.0), f"k{own}", f"k{other}", at_s=float(at)))
    return tuple(found)


def test_a_fit_serves_only_if_it_beats_the_rule_on_families_that_it_did_not_see() -> None:
    """Where the rule is right the gate refuses it, and the rule serves on."""
    for extra, better in ((0.0, False), (-0.4, True)):
        model = Colocations(fresh)
        for row in rows(extra):
            model.learn(row)
        work = model.due(9.0)
        assert work is not None
        assert model.due(10.0) is None
        refusal = model.adopt(work.run())
        assert (refusal is None) is better, refusal
        assert (model.forecast(11.0, EMPTY).colocation is RULE) is not better
    seen = rows(-0.4)
    rates = np.array([row.rate for row in seen])
    assert np.abs(held_out_rates(seen) - rates).mean() < 0.5 * np.abs(rule_rates(seen) - rates).mean()


def test_what_a_pair_keeps_is_shrunk_and_its_own() -> None:
    """One bad pair among good ones is remembered in its direction."""
    seen = rows(0.0, 100)
    bad = [Observed(Pair("x", "y", TURNS, "H100"), seen[0].own, seen[0].own, 0.2, "x", "y")] * 6
    model = fitted([*seen, *bad])
    assert model.corrections["x", "y", TURNS, "H100"] == -0.3  # type: ignore[index]
    assert rates_by(model, bad[:1])[0] < rule_rates(bad[:1])[0] - 0.2
    assert abs(rates_by(model, seen) - rule_rates(seen)).max() < 0.1


def test_what_is_not_known_teaches_nothing() -> None:
    """A rate that is no number, or work without a profile."""
    model = Colocations(fresh)
    row = rows(0.0, 1)[0]
    blind = Observed(row.pair, LoneProfile(1.0, 3600.0, 0.0), row.other, 0.5, "a", "b")
    for each in (Observed(row.pair, row.own, row.other, math.nan, "a", "b"), blind):
        for _ in range(LEAST_ROWS):
            model.learn(each)
    assert model.due(0.0) is None


KIND = {"rate_per_s": 9.0, "peak_mib": 900, "sm_ratio": 0.3, "dram_ratio": 0.2, "duty_ratio": 0.5, "power_ratio": None}
CASE = {"mechanism": "mps", "a": "gemm", "b": "copy", "rate_a": 0.9, "rate_b": None}
TABLE: dict[str, Any] = {
    "schema": SCHEMA,
    "machine": {"gpu_model": "H100-80GB"},
    "kinds": {"gemm": KIND, "copy": KIND},
    "pairs": [CASE, CASE | {"mechanism": "time-slicing", "rate_b": 1.02}],
}


def test_a_measured_table_is_read_in_both_directions() -> None:
    """A case that failed has no rate."""
    found = read_pairs(TABLE, "t.json")
    assert [(row.pair.own, row.pair.mechanism.value, row.rate) for row in found] == [
        ("gemm", "mps", 0.9),
        ("gemm", "time-slicing", 0.9),
        ("copy", "time-slicing", 1.0),
    ]
    assert np.isfinite(rule_rates(found)).all()


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], r"t\.json: not a table of gpu-autopilot/pairs/1"),
        (TABLE | {"schema": "other"}, "not a table"),
        ({"schema": SCHEMA}, "KeyError: 'machine'"),
        (TABLE | {"pairs": [CASE | {"mechanism": "magic"}]}, "'magic' is not a valid Mechanism"),
        (TABLE | {"pairs": [CASE | {"rate_a": math.nan}]}, r"pairs\[0\]\.rate is nan"),
        (TABLE | {"pairs": [CASE | {"a": "none"}]}, "KeyError: 'none'"),
        (TABLE | {"kinds": {"gemm": KIND | {"peak_mib": -1}, "copy": KIND}}, r"kinds\.gemm\.peak_mib is -1"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_clear_error(document: Any, problem: str) -> None:
    """It names the file and the field."""
    with pytest.raises(InputError, match=problem):
        read_pairs(document, "t.json")
