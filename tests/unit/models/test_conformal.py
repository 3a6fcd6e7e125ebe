"""Conformal quantiles by hand, and what an adaptive window does with a miss, a pool, a weight and bad numbers."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.errors import InvariantError
from models.conformal import TAIL_SCORES, WINDOW, Adaptive, Delivered, conformal_quantile

LEVELS = (0.5, 0.9, 0.99)


def fed(groups: int = 1, count: int = 300, seed: int = 1, spread: float = 1.0, **more: object) -> Adaptive:
    """An adaptive layer whose groups saw `count` normal scores each, to which nothing had been promised."""
    rng = np.random.default_rng(seed)
    layer = Adaptive(LEVELS, groups, **more)  # type: ignore[arg-type]
    for _ in range(count):
        layer.learn(np.arange(groups), rng.normal(size=groups) * spread, np.full((groups, len(LEVELS)), np.nan))
    return layer


def test_the_quantile_counts_the_next_score_as_infinite() -> None:
    """The ceil((n + 1) level)-th smallest of n: of 1..99 the 90th at 0.9 and the 99th at 0.99."""
    scores = np.arange(1.0, 100.0)
    assert conformal_quantile(scores, 0.9) == 90.0
    assert conformal_quantile(scores, 0.99) == 99.0
    assert conformal_quantile(scores[:98], 0.99) == float("inf")
    assert conformal_quantile([], 0.5) == float("inf")
    assert conformal_quantile([np.nan, 1.0, 2.0, 3.0], 0.5) == 2.0


def test_weights_move_the_quantile_to_what_was_rarely_seen() -> None:
    """Equal weights change nothing; a heavy large score pulls the quantile up; weight 0 removes a score."""
    scores = np.arange(1.0, 100.0)
    assert conformal_quantile(scores, 0.9, np.full(99, 7.0)) == 90.0
    heavy = np.where(scores > 80.0, 4.0, 1.0)
    assert conformal_quantile(scores, 0.6, heavy) > conformal_quantile(scores, 0.6)
    assert conformal_quantile(scores, 0.5, (scores > 50.0).astype(float)) == 75.0


def test_a_full_window_agrees_with_the_quantile() -> None:
    """With a window that resolves the level by far, the margin is near the plain conformal quantile."""
    layer = fed(count=2000, window=2000)
    scores = layer._scores[0].astype(float)
    assert layer.margin()[0, 1] == pytest.approx(conformal_quantile(scores, 0.9), abs=1e-6)


def test_a_miss_widens_and_a_hit_narrows() -> None:
    """The miss rate that is aimed at falls with a miss, rises with a hit, and stays without a promise."""
    layer = fed()
    before = layer.miss_rate[0]
    layer.learn([0], [9.0], np.zeros((1, 3)))
    missed = layer.miss_rate[0]
    assert (missed < before).all()
    layer.learn([0], [-9.0], np.zeros((1, 3)))
    assert (layer.miss_rate[0] > missed).all()
    again = layer.miss_rate[0]
    layer.learn([0], [9.0], np.full((1, 3), np.inf))
    assert (layer.miss_rate[0] == again).all()


def test_margins_rise_with_the_level_and_never_are_nan() -> None:
    """After a run of misses at the low level only, rows still rise."""
    layer = fed(3)
    for _ in range(300):
        layer.learn([0, 1], [0.0, 0.0], np.array([[-1.0, 1.0, 1.0]] * 2))
    margins = layer.margin()
    assert (np.diff(margins, axis=1) >= 0).all()
    assert np.isfinite(margins).all()


def test_a_group_without_history_has_the_margins_of_its_pool() -> None:
    """A new group takes the pool's usual scale, and not that of another pool."""
    layer = fed(20, spread=1.0, pool=np.r_[np.zeros(10, int), np.ones(10, int)])
    layer._scores[10:] *= 50.0
    layer.grow(2, [0, 1])
    margins = layer.margin()
    assert margins[20, 1] == pytest.approx(1.28, abs=0.15)
    assert margins[21, 1] == pytest.approx(64.0, rel=0.15)


def test_the_pool_resolves_what_one_window_cannot() -> None:
    """0.99 from 50 scores of each of 40 groups of different size: near the truth for each."""
    rng = np.random.default_rng(3)
    size = np.linspace(1.0, 10.0, 40)
    layer = Adaptive(LEVELS, 40)
    for _ in range(50):
        layer.learn(np.arange(40), rng.normal(size=40) * size, np.full((40, 3), np.nan))
    ratio = layer.margin()[:, 2] / (2.326 * size)
    assert 0.6 < ratio.min()
    assert ratio.max() < 1.6
    assert np.median(ratio) == pytest.approx(1.0, abs=0.12)


def test_too_few_scores_promise_nothing() -> None:
    """Below the least number of scores the level that they cannot resolve is infinite; above it is extrapolated."""
    few = fed(count=TAIL_SCORES - 1).margin()[0]
    assert np.isfinite(few[0])
    assert np.isinf(few[2])
    more = fed(count=TAIL_SCORES + 20).margin()[0]
    assert np.isfinite(more).all()
    assert more[2] > more[1]
    assert np.isinf(Adaptive(LEVELS, 2).margin()).all()


def test_the_window_forgets_and_so_does_forget() -> None:
    """After a window of small scores the large ones are gone; `forget` empties a group at once."""
    layer = fed(2, spread=100.0)
    for _ in range(WINDOW):
        layer.learn([0], [0.5], np.full((1, 3), np.nan))
    assert layer._scores[0].max() == 0.5
    layer.forget([1])
    assert layer.history.tolist() == [WINDOW, 0]


def test_a_layer_with_weights_that_forgot_every_group_promises_nothing() -> None:
    """It has weights and no score, as a new one has none."""
    layer = Adaptive(LEVELS, 1)
    layer.learn([0, 0], [1.0, 2.0], np.full((2, 3), np.nan), [1.0, 4.0])
    layer.forget([0])
    assert np.isinf(layer.margin()).all()


def test_several_scores_of_one_group_are_taken_in_their_order() -> None:
    """One call with repeats equals one call each."""
    whole, single = Adaptive(LEVELS, 2, window=4), Adaptive(LEVELS, 2, window=4)
    groups, scores = [0, 1, 0, 0, 1, 0, 0], np.arange(7.0)
    promised = np.tile([2.0, 3.0, 4.0], (7, 1))
    whole.learn(groups, scores, promised)
    for group, score, margin in zip(groups, scores, promised, strict=True):
        single.learn([group], [score], margin[None])
    assert np.array_equal(whole._scores, single._scores, equal_nan=True)
    assert np.allclose(whole.miss_rate, single.miss_rate)


def test_weights_count_in_the_window_and_in_the_pool() -> None:
    """Scores seen one time in four weigh four: margins move to them."""
    rng = np.random.default_rng(5)
    plain, weighted = Adaptive((0.5, 0.9), 1), Adaptive((0.5, 0.9), 1)
    scores = np.r_[rng.normal(0.0, 1.0, 240), rng.normal(5.0, 1.0, 60)]
    nothing = np.full((300, 2), np.nan)
    zeros = np.zeros(300, int)
    plain.learn(zeros, scores, nothing)
    weighted.learn(zeros, scores, nothing, np.where(scores > 2.5, 4.0, 1.0))
    assert plain.margin()[0, 0] < 1.0
    assert 1.5 < weighted.margin()[0, 0] < 5.0


def test_an_outlier_and_infinities_do_no_harm() -> None:
    """Infinite scores are clipped, NaN left out; the margins at 0.9 hardly move."""
    layer = fed()
    before = layer.margin()[0]
    layer.learn([0, 0, 0], [np.inf, np.nan, -np.inf], np.full((3, 3), np.nan))
    assert layer.history[0] == 302
    assert layer.margin()[0, 1] == pytest.approx(before[1], abs=0.1)
    assert np.isfinite(layer.margin()).all()


@pytest.mark.parametrize("levels", [(0.9, 0.5), (0.0, 0.5), (0.5, 1.0)])
def test_levels_out_of_order_are_refused(levels: tuple[float, float]) -> None:
    """Levels lie inside (0, 1) and rise."""
    with pytest.raises(InvariantError):
        Adaptive(levels, 1)


def test_delivered_coverage_is_that_of_the_last_week() -> None:
    """Kept / made over whole days; an old week drops out; no promise is NaN."""
    table = Delivered(2, 1)
    for day in range(10):
        kept = 0.0 if day < 3 else 1.0
        table.note(day * 86_400.0, [0], [1.0], [[2.0 * kept]])
    assert table.ratio(9 * 86_400.0)[0, 0] == 1.0
    assert np.isnan(table.ratio(9 * 86_400.0)[1, 0])
    table.note(9 * 86_400.0, [0, 0], [1.0, np.nan], [[0.0], [0.0]])
    assert table.ratio(9 * 86_400.0)[0, 0] == pytest.approx(7 / 8)
    assert np.isnan(table.ratio(40 * 86_400.0)[0, 0])
