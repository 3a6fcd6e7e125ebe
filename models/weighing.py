"""The weight of a chosen model relative to the floor, by the errors of both on the series itself.

Promises of the model and of the floor are mixed, for each series, horizon and level, by a share that depends on their
recent losses. Losses are convex (absolute error, pinball), so a mixture never loses more than the same mixture of the
two losses: where the share follows the evidence, the increase over the floor's loss is bounded by the time it takes to
see that the model is worse.

The evidence is the floor's loss minus the model's, summed over two memories, in units of its standard error by blocks
no shorter than the horizon (losses of overlapping forecasts are dependent). That is the normal approximation of a block
bootstrap: cheap, online, and without randomness. The lower of the two memories counts: a model must be better in the
long run, and must not be worse recently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64

MEMORIES = ((1000.0, 60.0), (300.0, 60.0))
"""Outcomes after which one counts 1/e, long and short, of the median and of upper levels."""

LATELY = (2.0, 0.5)
"""Standard errors by which a model may be behind in the short memory, of the median and of upper levels, without a
smaller share: of two medians the better one stays so for days, and one hour of them is mostly chance. A bound that has
become too wide or too low shows within hours.
"""

LEAST_BLOCK = 5
"""Minimum number of outcomes of a block: losses come in bursts also where forecasts do not overlap."""

BEHIND, AHEAD = -1.0, 1.0
"""Standard errors at which only the floor counts, and only the model. Before any outcome both count half, because the
model was chosen on earlier errors.
"""


Rows = NDArray[np.int64]


class Weighing:
    """Shares [series, horizons, levels] of the model in a mixture with the floor, learned from their losses.

    `doubt` [series, horizons, levels]: additional standard errors required (models/selection.py); none by default.
    """

    def __init__(self, levels: Sequence[float], series: int, steps: Sequence[int], doubt: F64 | None = None) -> None:
        self.levels, self.steps = tuple(levels), tuple(steps)
        self._doubt = np.zeros((series, len(self.steps), len(self.levels))) if doubt is None else doubt.copy()
        self._blocks = [max(LEAST_BLOCK, each) for each in self.steps]
        shape = (series, len(self.levels))
        self._fade = 1.0 - 1.0 / np.array([MEMORIES[level > 0.5] for level in self.levels]).T
        self._lately = np.array([LATELY[level > 0.5] for level in self.levels])
        self._ahead = [np.zeros((len(self._fade), *shape)) for _ in self.steps]
        self._square = [np.zeros((len(self._fade), *shape)) for _ in self.steps]
        self._usual = [np.zeros((2, *shape)) for _ in self.steps]  # sum of the floor's losses, and their weight
        self._recent = [np.zeros((block, *shape)) for block in self._blocks]
        self._turn = [np.zeros(series, np.int64) for _ in self.steps]
        self._exact = [np.zeros((1, *shape)) for _ in self.steps]  # outcomes since the floor last had a loss

    def grow(self, series: int) -> None:
        """Add series without history."""
        more = Weighing(self.levels, series, self.steps)
        for name in ("_ahead", "_square", "_usual", "_recent", "_exact"):
            mine, theirs = getattr(self, name), getattr(more, name)
            setattr(self, name, [np.concatenate(pair, axis=1) for pair in zip(mine, theirs, strict=True)])
        self._turn = [np.concatenate(pair) for pair in zip(self._turn, more._turn, strict=True)]
        self._doubt = np.concatenate([self._doubt, more._doubt])

    def forget(self, rows: Rows) -> None:
        """Reset series: another name, or another model."""
        for parts in (self._ahead, self._square, self._usual, self._recent, self._exact):
            for part in parts:
                part[:, rows] = 0.0
        for turn in self._turn:
            turn[rows] = 0
        self._doubt[rows] = 0.0

    def begin(self, rows: Rows, doubt: F64) -> None:
        """Other models are tried for `rows`, with this `doubt` [n, horizons, levels]."""
        self.forget(rows)
        self._doubt[rows] = doubt

    def learn(self, horizon: int, rows: Rows, came: F64, floor: F64, model: F64) -> None:
        """Take in the outcomes `came` [n] for the promises of `floor` and `model` [n, levels] of `rows`, each once."""
        levels = np.asarray(self.levels)
        lost = pinball_at(came[:, None] - floor, levels)
        ahead = lost - pinball_at(came[:, None] - model, levels)
        known = ~np.isnan(ahead)
        seen = known.any(axis=1)
        if not seen.any():
            return
        rows, known = rows[seen], known[seen]
        ahead, lost = (np.where(known, each[seen], 0.0) for each in (ahead, lost))
        block, turn, recent = self._blocks[horizon], self._turn[horizon], self._recent[horizon]
        recent[turn[rows] % block, rows] = ahead
        turn[rows] += 1
        of_block = recent[:, rows].sum(axis=0) ** 2 / block
        for place, fade in enumerate(self._fade):
            for sums, new in ((self._ahead[horizon], ahead), (self._square[horizon], of_block)):
                sums[place, rows] = fade * sums[place, rows] + new
        usual, exact = self._usual[horizon], self._exact[horizon]
        usual[:, rows] = self._fade[0] * usual[:, rows] + np.stack([lost, known])
        exact[0, rows] = np.where(lost > 0.0, 0.0, exact[0, rows] + known)

    def share(self, horizon: int) -> F64:
        """The model's fraction of the mixture, 0 to 1. Shape [series, levels].

        Zero where the floor was exact for a block: it serves a constant series.
        """
        total, weight = self._usual[horizon]
        # one block of the floor's usual loss is no evidence
        prior = self._blocks[horizon] * (total / np.maximum(weight, 1.0)) ** 2
        spread = np.sqrt(self._square[horizon] + prior)
        long, short = np.where(spread > 0.0, self._ahead[horizon] / np.maximum(spread, 1e-300), 0.0)
        errors = np.minimum(long, short + self._lately) - self._doubt[:, horizon]
        share = np.clip((errors - BEHIND) / (AHEAD - BEHIND), 0.0, 1.0)
        return np.where(self._exact[horizon][0] >= self._blocks[horizon], 0.0, share)

    def shares(self) -> F64:
        """`share` of all horizons. Shape [series, horizons, levels]."""
        return np.stack([self.share(horizon) for horizon in range(len(self.steps))], axis=1)


def mixed(floor: F64, model: F64, share: F64) -> F64:
    """Promises [..., levels] of both, mixed by the model's `share`; of one alone where the other abstains."""
    found = np.where(np.isnan(model), floor, np.where(np.isnan(floor), model, floor + share * (model - floor)))
    return np.where(np.isnan(found), np.nan, np.fmax.accumulate(found, axis=-1))


def weighed(weighing: Weighing, floor: F64, model: F64, came: F64) -> F64:
    """Promises of both [series, origins, horizons, levels] mixed, each outcome `came` learned when it is known."""
    found = np.full(model.shape, np.nan)
    rows = np.arange(len(model), dtype=np.int64)
    for origin in range(model.shape[1]):
        for horizon, ahead in enumerate(weighing.steps):
            then = origin - ahead
            if then >= 0:
                weighing.learn(horizon, rows, came[:, then, horizon], floor[:, then, horizon], model[:, then, horizon])
        found[:, origin] = mixed(floor[:, origin], model[:, origin], weighing.shares())
    return found


def pinball_at(error: F64, levels: F64) -> F64:
    """Pinball losses of errors [n, levels]."""
    return np.asarray(np.maximum(levels * error, (levels - 1.0) * error))
