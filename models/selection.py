"""Selects a model for each series: the one that would have been best recently, and the reason.

Every model is judged at the median (absolute error) and at the upper levels (pinball loss, each with margins from the
other half of the same time, so that models without a spread of their own take part), relative to the floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64, Bools
from models.demand import Ask, blocks
from models.layer import POOLED_ABOVE, units

GAIN = 0.98
"""Maximum loss of a model, relative to the floor's, to replace the floor."""

POOL_WEIGHT = 200.0
"""Independent outcomes of a series that weigh as much as the results on all series: a hundred forecasts, most of them
overlapping, rank models by chance, and do not show the loss of a rare burst.
"""


LEVEL_OUTCOMES = 5.0
"""Independent outcomes beyond a level at which its loss counts half of its weight with very many."""


@dataclass(frozen=True, slots=True)
class Choice:
    """For each series and horizon the index of the chosen model in `names`, and all relative losses.

    `losses` is [models, series, horizons]: weighted mean over levels of loss / loss of the floor, shrunk towards that
    of all series; NaN where a model abstained. The floor is model 0. `tried`: the chosen model, or where that is the
    floor the best other one, which has yet to show that it is better. `doubt` [series, horizons, levels]: additional
    evidence required (models/weighing.py): 2 where it was not chosen, 1 at a level at which a chosen one was not
    better, else 0.
    """

    names: tuple[str, ...]
    chosen: NDArray[np.int64]
    losses: F64
    tried: NDArray[np.int64]
    doubt: F64

    def reason(self, series: int, horizon: int) -> str:
        """The choice as text."""
        place = int(self.chosen[series, horizon])
        losses = self.losses[:, series, horizon]
        if np.isnan(losses).all():
            return f"{self.names[place]}: no comparison yet"
        if place == 0:
            others = np.where(np.isnan(losses), np.inf, losses)[1:]
            if not len(others) or not np.isfinite(others.min()):
                return f"{self.names[0]}: no other model is available yet"
            best = int(np.argmin(others)) + 1
            return (
                f"{self.names[0]}: the best other, {self.names[best]}, had {losses[best]:.2f} of its loss "
                f"(needed {GAIN})"
            )
        return f"{self.names[place]}: {losses[place]:.2f} of the loss of {self.names[0]}"


def choose(raw: Mapping[str, F64], came: F64, root: F64, ask: Ask) -> Choice:
    """Choose by forecasts `raw` [series, origins, horizons, levels] of each model, the floor first, for the outcomes
    `came`.

    `came` is [series, origins, horizons], `root` [series] the root of the usual demand.
    """
    names = tuple(raw)
    logs = np.full((len(names), *came.shape[::2], len(ask.levels)), np.nan)
    outcomes = (~np.isnan(came)).sum(axis=1) / np.asarray(ask.steps)
    weights = _level_weights(outcomes, ask.levels)
    floor = _losses(raw[names[0]], came, root, ask.levels)
    for place, name in enumerate(names):
        own = floor if place == 0 else _losses(raw[name], came, root, ask.levels, instead=raw[names[0]])
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(floor > 0.0, own / floor, np.where(own > 0.0, np.inf, 1.0))
            ratio = np.where(np.isnan(floor) | np.isnan(own), np.nan, np.clip(ratio, 0.01, 100.0))
        logs[place] = np.log(ratio)
    trust = outcomes / (outcomes + POOL_WEIGHT)
    by_level = _drawn(logs, trust[..., None])
    mixed = np.exp((by_level * weights).sum(axis=3))
    known = ~np.isnan(mixed)
    best = np.argmin(np.where(known, mixed, np.inf), axis=0)
    won = np.take_along_axis(np.where(known, mixed, np.inf), best[None], axis=0)[0] <= GAIN
    others = np.where(known, mixed, np.inf)
    others[0] = np.inf
    tried = np.where(np.isfinite(others).any(axis=0), np.argmin(others, axis=0), 0)
    ahead = np.take_along_axis(by_level, tried[None, :, :, None], axis=0)[0] <= np.log(GAIN)
    doubt = np.where(won[..., None], np.where(ahead, 0.0, 1.0), 2.0)
    return Choice(names, np.where(won, best, 0), mixed, tried, doubt)


def _drawn(logs: F64, trust: F64) -> F64:
    """Logs of relative losses [models, series, ...] shrunk towards their mean over the series, less where `trust` is
    high.
    """
    known = ~np.isnan(logs)
    total = np.where(known, logs, 0.0).sum(axis=1, keepdims=True)
    overall = total / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.asarray(trust * logs + (1.0 - trust) * overall)


def _level_weights(outcomes: F64, levels: Sequence[float]) -> F64:
    """Weights [..., levels] that sum to 1: how well `outcomes` independent ones resolve each level."""
    beyond = outcomes[..., None] * (1.0 - np.asarray(levels))
    weight = np.maximum(beyond / (beyond + LEVEL_OUTCOMES), 1e-9)
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True))


def composed(raw: Mapping[str, F64], choice: Choice) -> F64:
    """The forecasts of the tried models; where one abstains, the floor's."""
    found = raw[choice.names[0]].copy()
    for place, name in enumerate(choice.names):
        series, horizon = np.nonzero(choice.tried == place)
        part = raw[name][series, :, horizon]
        floor = found[series, :, horizon]
        found[series, :, horizon] = np.where(np.isnan(part).any(axis=2, keepdims=True), floor, part)
    return found


def pinball(error: F64, level: float) -> F64:
    """Pinball loss of `error` = outcome - quantile (Koenker and Bassett 1978). At 0.5 half the absolute error."""
    return np.asarray(np.maximum(level * error, (level - 1.0) * error))


def _losses(raw: F64, came: F64, root: F64, levels: Sequence[float], instead: F64 | None = None) -> F64:
    """Mean pinball losses [series, horizons, levels]; NaN where fewer than a quarter of the outcomes have a forecast.

    `instead`: the forecast where the model abstains, as in `composed`: a model that forecasts in calm hours only is not
    preferred because of the hours.
    """
    series, origins, horizons, _ = raw.shape
    found = np.full((series, horizons, len(levels)), np.nan)
    for rows in blocks(series, origins):
        for ahead in range(horizons):
            forecast, outcome = raw[rows, :, ahead], came[rows, :, ahead]
            there = ~np.isnan(outcome)
            made = ~np.isnan(forecast).any(axis=2) & there
            enough = made.sum(axis=1) >= np.maximum(8, there.sum(axis=1) / 4)
            if instead is not None:
                forecast = np.where(made[:, :, None], forecast, instead[rows, :, ahead])
            known = ~np.isnan(forecast).any(axis=2) & there
            losses = _mean_losses(forecast, outcome, root[rows], levels, known)
            found[rows, ahead] = np.where(enough[:, None], losses, np.nan)
    return found


def _mean_losses(raw: F64, came: F64, root: F64, levels: Sequence[float], known: Bools) -> F64:
    """Mean pinball losses [series, levels] over the origins that are `known` [series, origins].

    An upper level gets its margin on each half of the time from the scores of the other half.
    """
    raw, came = np.where(known[:, :, None], raw, 0.0), np.where(known, came, 0.0)
    unit = units(raw, root[:, None])
    half = known.shape[1] // 2
    found = np.zeros((len(raw), len(levels)))
    for place, level in enumerate(levels):
        upper = raw[:, :, place]
        if level > 0.5:
            roots = np.sqrt(upper)
            scores = np.where(known, (np.sqrt(came) - roots) / unit, np.nan)
            early, late = (_margin(part, level) for part in (scores[:, half:], scores[:, :half]))
            margin = np.where(np.arange(known.shape[1]) < half, early[:, None], late[:, None])
            upper = np.maximum(roots + margin * unit, 0.0) ** 2
        loss = np.where(known, pinball(came - upper, level), 0.0)
        found[:, place] = loss.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return found


def _margin(scores: F64, level: float) -> F64:
    """Conformal quantile of each row's known scores; their largest where they are too few, 0 without any. Shape [rows].

    As `conformal_quantile`: the smallest with at least ceil((n + 1) level) of them below or at it. Where the layer lets
    the pool decide, that of all rows together.
    """
    if level > POOLED_ABOVE:
        return np.broadcast_to(_quantile(scores.reshape(1, -1), level), len(scores))
    return _quantile(scores, level)


def _quantile(scores: F64, level: float) -> F64:
    if not scores.shape[1]:
        return np.zeros(len(scores))
    count = (~np.isnan(scores)).sum(axis=1)
    place = np.ceil(level * (count + 1) * (1.0 - 1e-12)).astype(np.int64) - 1
    place = np.clip(place, 0, np.maximum(count - 1, 0))
    found = np.take_along_axis(np.sort(scores, axis=1), place[:, None], axis=1)[:, 0]
    return np.where(count > 0, found, 0.0)
