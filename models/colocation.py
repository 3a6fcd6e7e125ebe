"""Rates of work together on one GPU, learned from pairs that shared one: the model behind core/sharing/colocation.py.

The rule of the core serves until a fit beats it. A fit adds two things to the rule: weights of the uses by mechanism
and model of GPU, which also hold for kinds that were never seen, and what a pair keeps beyond them, shrunk towards 0.
It is judged on what a cluster meets: work of a family that the fit did not see (trees look twice as good on random
pairs as on a new family: study of sharing, section 2). The gate is that of all models (models/backtest.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.colocation import RULE, Colocation, Mechanism, Pair
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory.profiles import ProfilesMemory
from autopilot.core.model.snapshot import F64, ClusterSnapshot
from autopilot.core.sharing.colocation import Prediction, Sharer, compared_uses, predicted_rates
from autopilot.core.sharing.sharers import PACE_S, Observed, observed_pairs
from models.backtest import CaseLosses, FreshRng, GateRules, GateVerdict, Scores, judge

NAME = "colocation"

OPTIMISTIC_RATE = 0.15
"""A rate predicted too high by more than this was a wrong promise (issue, and study, section 2)."""

RIDGE = 1.0
"""Rows without effect that weights are shrunk by."""

PAIR_ROWS = 2.0
"""Observations of a pair at which half of what it keeps beyond the weights counts."""

MOST_ADDED = 0.3
"""The most that one pair adds to the rule, either way."""

LEAST_ROWS = 200
"""Observations before the first fit: the least origins of a group that the gate lets block."""

MOST_ROWS = 20_000
"""Observations kept, the newest."""

GROWTH = 1.25
"""A fit is due when there are this many times as many observations as at the last one."""

ROOMY_MIB = 1e9
"""Memory is no question of rates."""

RULES = GateRules(primary=("error",), best_ratio=0.98)


@dataclass(frozen=True, slots=True)
class Proof:
    """A challenger, and the verdict on it."""

    challenger: Colocation
    verdict: GateVerdict


@dataclass(frozen=True, slots=True)
class ColocationFit:
    """A fit and its trial, a pure function of the rows, in the order of their times. It may run anywhere."""

    rows: tuple[Observed, ...]
    champion: Colocation
    rng: FreshRng
    made_s: float = 0.0

    def run(self) -> Proof:
        """Fit, and judge with whole families held out."""
        return Proof(fitted(self.rows, self.made_s), proved(self.rows, self.champion, self.rng))


class Colocations:
    """Forecaster of the rates of work together: it keeps observations, and the model that serves."""

    name = NAME

    def __init__(self, rng: FreshRng, champion: Colocation = RULE) -> None:
        self._rng, self._rows, self._fitted_rows = rng, list[Observed](), 0
        self._profiles, self._look_s = ProfilesMemory(), float("-inf")
        self.serving = champion

    def know(self, profiles: ProfilesMemory) -> None:
        """What work does alone (port `Profiled`)."""
        self._profiles = profiles

    def learn(self, row: Observed) -> None:
        """Keep what was observed. A rate that is not finite, or of work without a usable profile, teaches nothing."""
        if np.isfinite(row.rate) and row.rate >= 0.0 and np.isfinite(rule_rates((row,))[0]):
            self._rows.append(replace(row, rate=min(row.rate, 1.0)))
            if len(self._rows) > 2 * MOST_ROWS:
                del self._rows[:MOST_ROWS]

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Learn from each pair whose progress is measured, once in the time that a pace covers."""
        if now_s - self._look_s >= PACE_S or now_s < self._look_s:
            self._look_s = now_s
            for row in observed_pairs(snapshot, self._profiles, now_s):
                self.learn(row)

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """The serving model: the rule until a fit has passed its gate."""
        return Forecasts(colocation=self.serving)

    def due(self, now_s: float) -> ColocationFit | None:
        """The next fit, when there are enough new observations."""
        if len(self._rows) < max(LEAST_ROWS, GROWTH * self._fitted_rows):
            return None
        self._fitted_rows = len(self._rows)
        return ColocationFit(tuple(self._rows[-MOST_ROWS:]), self.serving, self._rng, now_s)

    def adopt(self, proof: Proof) -> str | None:
        """Serve the challenger if it passed; returns why the gate refused it."""
        if proof.verdict.passed:
            self.serving = proof.challenger
        return proof.verdict.refusal("colocation")


def rates_by(model: Colocation, rows: Sequence[Observed]) -> F64:
    """The rate that `model` predicts for each row; NaN where it abstains."""
    return np.array([_rate(model, row) for row in rows], float)


def rule_rates(rows: Sequence[Observed]) -> F64:
    """The same by the rule alone."""
    return rates_by(RULE, rows)


def fitted(rows: Sequence[Observed], made_s: float = 0.0) -> Colocation:
    """Weights and corrections from rows with a profile."""
    by_group: dict[tuple[Mechanism, str], list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        by_group[row.pair.mechanism, row.pair.gpu_model].append(at)
    rates, rule = np.array([row.rate for row in rows]), rule_rates(rows)
    weights = {}
    for group, places in by_group.items():
        features = np.stack([_features(rows[at]) for at in places])
        missed = (rates - rule)[places]
        square = features.T @ features + RIDGE * np.eye(features.shape[1])
        solved = np.linalg.solve(square, features.T @ missed)
        weights[group] = (float(solved[0]), float(solved[1]), float(solved[2]))
    plain = Colocation(NAME, made_s, {}, weights)
    beyond: dict[Pair, list[float]] = defaultdict(list)
    for row, missed in zip(rows, rates - rates_by(plain, rows), strict=True):
        beyond[row.pair].append(float(missed))
    corrections = {
        pair: float(np.clip(sum(missed) / (len(missed) + PAIR_ROWS), -MOST_ADDED, MOST_ADDED))
        for pair, missed in beyond.items()
    }
    return replace(plain, corrections=corrections)


def held_out_rates(rows: Sequence[Observed]) -> F64:
    """For each row the rate that a fit predicts which saw neither of its families."""
    found = np.full(len(rows), np.nan)
    together: dict[frozenset[str], list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        together[frozenset({row.family, row.other_family} - {""})].append(at)
    for families, places in together.items():
        seen = [row for row in rows if not families & {row.family, row.other_family}]
        found[places] = rates_by(fitted(seen) if seen else RULE, [rows[at] for at in places])
    return found


def proved(rows: Sequence[Observed], champion: Colocation, rng: FreshRng, rules: GateRules = RULES) -> GateVerdict:
    """The verdict on a fit of these rows: ahead of the rule and of the champion, on families that it did not see."""
    challenger, rule, serves = held_out_rates(rows), rule_rates(rows), rates_by(champion, rows)
    rates = np.array([row.rate for row in rows])
    cases = []
    for mechanism in Mechanism:
        places = np.array([at for at, row in enumerate(rows) if row.pair.mechanism is mechanism], np.int64)
        if len(places):
            three = (_scores(each[places], rates[places]) for each in (challenger, rule, serves))
            times_s = np.array([rows[at].at_s for at in places])
            cases.append(CaseLosses(f"colocation {mechanism}", mechanism, times_s, 0.0, *three))
    return judge(cases, len(rows), rng(), rules)


def _rate(model: Colocation, row: Observed) -> float:
    sharers = [Sharer(row.pair.own, row.own, row.part)]
    if row.other is not None:
        sharers.append(Sharer(row.pair.other, row.other, row.part))
    found = predicted_rates(sharers, row.pair.mechanism, row.pair.gpu_model, ROOMY_MIB, model)
    return found.rates[0] if isinstance(found, Prediction) else float("nan")


def _features(row: Observed) -> F64:
    """What the weights multiply (`Colocation.added`)."""
    own, other = compared_uses(row.own, row.other, row.pair.mechanism, row.part)
    return np.array([own, other, own * other])


def _scores(predicted: F64, rates: F64) -> Scores:
    """The losses of the gate: the error, and what was promised too much beyond `OPTIMISTIC_RATE`."""
    error = predicted - rates
    return Scores({"error": np.abs(error), "too_optimistic": np.maximum(error - OPTIMISTIC_RATE, 0.0)}, {})
