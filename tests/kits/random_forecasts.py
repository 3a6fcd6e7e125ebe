"""Random forecasts, each grown from those of the tick before."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.colocation import RULE, Colocation, Mechanism, Pair
from autopilot.core.model.forecast import LEVELS, ExpectedMix, Forecast, Forecasts, MixKind, RuntimeForecast
from autopilot.core.model.neighbours import Interference, Measure, Nearness, SlowGpu, Straggler, Unjudged

NAN = float("nan")


def random_forecasts(rng: np.random.Generator, old: Forecasts, workloads: int) -> Forecasts:
    """New forecasts; each field may keep the value of `old`."""
    new = Forecasts(
        _runtimes(rng, workloads, old.runtimes),
        () if old.demand else (Forecast("b", 1.0, ("s",), (60.0,), LEVELS, rng.random((1, 1, 7))),),
        None if old.mix else _mix(rng),
        RULE if rng.random() < 0.5 else _colocation(rng),
        () if old.interference else (_interference(float(rng.random())),),
        () if old.unjudged else (Unjudged("u", "sparse"),),
        (*old.stragglers[-1:], _straggler(float(rng.random()))),
        () if old.slow_gpus else (SlowGpu("node", "GPU-1", 2, 1.2, ("clocks",)),),
    )
    kept = {name: getattr(old if rng.random() < 0.7 else new, name) for name in Forecasts.__slots__}
    return Forecasts(**kept | {"runtimes": new.runtimes})


def _mix(rng: np.random.Generator) -> ExpectedMix:
    kind = MixKind(("H100",), 16, 8, topology=1)
    return ExpectedMix("m", 1.0, (kind,), (60.0,), (0.5,), rng.random((1, 1)), np.ones((1, 1, 1)))


def _colocation(rng: np.random.Generator) -> Colocation:
    weights = {(Mechanism.MPS, "H100"): (0.1, -0.2, float(rng.random()))}
    return Colocation("c", float(rng.random()), {Pair("a", "b", Mechanism.MPS, "H100"): 0.1}, weights)


def _interference(rise: float) -> Interference:
    return Interference("v", "1", "s", "2", Measure.RATE, Nearness.NUMA, rise, NAN, 5.0, 0.5, "load", 1.0, 2.0)


def _straggler(slow: float) -> Straggler:
    return Straggler("g", "3", 4, "node", "GPU-1", slow, ("clocks", "xid"), 0.9, 1.0, 2.0, 7.0)


def _runtimes(rng: np.random.Generator, rows: int, old: RuntimeForecast | None) -> RuntimeForecast | None:
    """A forecast for the rows of the workload table, none, or a stale one of another length."""
    if rng.random() < 0.2:
        return None
    if rng.random() < 0.2:
        return old
    total_s = np.sort(rng.random((rows, len(LEVELS))), axis=1)
    if rng.random() < 0.5:
        total_s = np.asfortranarray(total_s)
    total_s[rng.random(rows) < 0.2] = np.nan
    hazard = np.where(rng.random(rows) < 0.2, np.nan, rng.random(rows)) if rng.random() < 0.7 else np.empty(0)
    known, history = rng.random(rows) < 0.5, np.arange(rows, dtype=np.int32)
    return RuntimeForecast("m", float(rng.random()), LEVELS, total_s, known, history, hazard)
