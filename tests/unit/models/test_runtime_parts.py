"""The parts of run-time forecasts: last jobs alike, weights, calibration, censoring, what lasts."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.kinds import name_stem
from models.backtest_runtimes import LEAST_OUTLIVED, usual_left
from models.censoring import censored_quantile, completion_weights
from models.conformal import conformal_quantile
from models.intervals import HIGHEST, Intervals, groups_of
from models.opinions import MEDIAN, OPINIONS, SIBLINGS, Mixer, corrected, most_likely, ordered
from models.recent import MOST_KINS, Recent, floor_forecast, kins_of, modes, quantiles
from models.runtime_boosting import LEAST_ROWS, BoostingRules, fit_boosted, telling_columns

P90 = LEVELS.index(0.9)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("train-17", "train-#"),
        ("Train-18 ", "train-#"),
        ("bert_0a1b2c3d4e5f", "bert_#"),
        ("", ""),
        ("resnet50-lr0.1", "resnet#-lr#.#"),
    ],
)
def test_a_stem_is_what_repetitions_share(name: str, stem: str) -> None:
    """Numbers and hexadecimal tails are left out, letters stay."""
    assert name_stem(name) == stem


def test_quantiles_leave_gaps_out() -> None:
    """As numpy's, over the values that are there; NaN where none is."""
    rows = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan] * 4])
    assert quantiles(rows, (0.0, 0.5, 0.75))[0].tolist() == [1.0, 2.0, 2.5]
    assert np.isnan(quantiles(rows, (0.5,))[1]).all()


def ended(recent: Recent, tenant: str, log_s: float, now_s: float) -> None:
    """One job of `tenant` comes and ends."""
    kins = kins_of(tenant, "", "", 1.0)
    recent.end(kins, recent.submit(recent.slots(kins), now_s - 1.0), now_s - 1.0, log_s, now_s)


def test_the_floor_is_the_median_of_the_last_ten_alike_then_of_wider_kins() -> None:
    """Ten of the own tenant before anything else; a tenant never seen takes what holds for all."""
    recent = Recent()
    for number in range(15):
        ended(recent, "a", float(number), 10.0 * number)
    rows = np.stack([recent.slots(kins_of(tenant, "", "", 1.0)) for tenant in ("a", "b")])
    said = floor_forecast(recent.gather(rows, np.full(2, 200.0)), (0.5,))
    assert said[:, 0].tolist() == [9.5, 9.5]
    ended(recent, "b", 100.0, 201.0)
    said = floor_forecast(recent.gather(rows, np.full(2, 202.0)), (0.5,))
    assert said[:, 0].tolist() == [9.5, 100.0]


def test_names_without_end_are_forgotten_and_the_rest_is_kept() -> None:
    """Far more names than are kept: memory stays bounded, and a kin in use survives."""
    recent = Recent()
    for number in range(MOST_KINS // 2):
        ended(recent, f"tenant-{number}", 5.0, float(number))
    assert len(recent._slot) <= MOST_KINS + 6
    ended(recent, "late", 7.0, 1e6)
    kept = recent.gather(recent.slots(kins_of("late", "", "", 1.0))[None, :], np.array([1e6 + 1]))
    assert kept.ended[0, 0, 0] == 7.0
    assert kept.submitted[0, 0, 0] == 7.0


def test_the_mode_is_where_the_values_crowd() -> None:
    """Three equal values against four that are scattered."""
    values = np.array([[1.0, 9.0, 5.0, 5.0, 5.0, 13.0, 20.0]], np.float32)
    assert modes(values)[0] == pytest.approx(5.0, abs=1e-6)


def test_the_most_likely_run_time_is_a_crowd_near_the_model_s_median() -> None:
    """A crowd within the spread draws the middle to it; one far away does not."""
    near, far = np.full((1, 60), np.nan, np.float32), np.full((1, 60), np.nan, np.float32)
    near[0, :8], far[0, :8] = 7.4, 15.0
    said = np.array([[5.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0]])
    assert most_likely(near, said)[0] == pytest.approx(7.4, abs=0.1)
    assert most_likely(far, said)[0] == pytest.approx(7.0, abs=0.05)


def test_the_mixer_believes_who_was_right() -> None:
    """After some jobs nearly all weight is with the one good opinion, in this kind of job only."""
    mixer = Mixer()
    opinions = np.full((len(OPINIONS), len(LEVELS)), np.nan)
    opinions[0], opinions[2] = 9.0, 5.0
    row = int(mixer.rows(["kind"])[0])
    for _ in range(30):
        mixer.learn(row, opinions, 5.0)
    mixed = mixer.mix(mixer.rows(["kind"]), opinions[None])
    assert mixed[0].tolist() == pytest.approx([5.0] * len(LEVELS), abs=0.01)


def test_ordering_keeps_the_middle() -> None:
    """Crossed quantiles are reordered around the middle."""
    assert ordered(np.array([[4.0, 6.0, 5.0, 4.5, 8.0, 7.0, 9.0]]))[0].tolist() == [
        4.0,
        5.0,
        5.0,
        5.0,
        7.0,
        8.0,
        9.0,
    ]


SAID, NO_MARGIN = np.full(len(LEVELS), 5.0), np.zeros(len(LEVELS))  # e^5 = 148.4 s


def delivered(scores: np.ndarray) -> np.ndarray:
    """Which of the promises were kept, each settled before the next is made. Shape [turns, levels]."""
    layer = Intervals()
    kept, group = [], np.zeros(1, np.int32)
    for turn, score in enumerate(scores.tolist()):
        margin = layer.margins(group)[0].copy()
        kept.append(score <= margin)
        layer.add(turn, np.full(len(LEVELS), 20.0), margin, 0)
        layer.end(turn, float(np.exp(20.0 + score)), 0.0)
        layer.settle(np.inf)
    return np.array(kept)


@pytest.mark.parametrize("kind", ["iid", "ar", "step", "ramp"])
def test_promises_are_kept_at_every_level(kind: str) -> None:
    """On independent, autoregressive, shifted and drifting errors, within two points of what was promised."""
    rng = np.random.default_rng(11)
    noise = rng.normal(size=4000)
    if kind == "ar":
        for place in range(1, len(noise)):
            noise[place] += 0.7 * noise[place - 1]
    shift = {"step": 2.0 * (np.arange(4000) > 2000), "ramp": np.arange(4000) / 1000.0}.get(kind, 0.0)
    kept = delivered(noise + shift)
    for level in (0.05, 0.25, 0.75, 0.9, 0.95, 0.99):
        assert abs(kept[200:, LEVELS.index(level)].mean() - level) <= 0.02, level


def test_jobs_that_outlive_what_was_said_widen_it_before_they_end() -> None:
    """Forty ended as foreseen; forty that run for three times as long already move the margin, and their end as far as
    it goes.
    """
    layer, group = Intervals(), np.zeros(1, np.int32)
    for number in range(80):
        layer.add(number, SAID, NO_MARGIN, 0)
    for number in range(40):
        layer.end(number, float(np.exp(5.0)), 200.0)
    assert layer.margins(group)[0, P90] == pytest.approx(0.0)
    late = list(range(40, 80))
    layer.ran(late, np.full(40, 3.0 * np.exp(5.0)))
    assert layer.margins(group)[0, P90] == pytest.approx(np.log(3.0))
    for number in late:
        layer.end(number, float(np.exp(7.0)), 2000.0)
    assert layer.margins(group)[0, P90] == pytest.approx(2.0)
    assert len(layer) == 0


def test_a_job_that_comes_to_nothing_leaves_no_score() -> None:
    """Thirty forgotten jobs, seen to run for a day: the margin is that of the others."""
    layer, group = Intervals(), np.zeros(1, np.int32)
    for number in range(70):
        layer.add(number, SAID, NO_MARGIN, 0)
    layer.ran(list(range(30)), np.full(30, 86_400.0))
    for number in range(30):
        layer.forget(number)
    for number in range(30, 70):
        layer.end(number, float(np.exp(6.0)), 500.0)
    assert layer.margins(group)[0, P90] == pytest.approx(1.0)
    assert len(layer) == 0


def test_many_promises_broken_at_once_move_the_aim_less_than_one_after_the_other() -> None:
    """A hundred jobs of one event against a hundred events."""
    at_once, in_turn = Intervals(), Intervals()
    for number in range(100):
        at_once.add(number, SAID, NO_MARGIN, 0)
    for number in range(100):
        at_once.end(number, 1000.0, 1000.0)
        in_turn.add(number, SAID, NO_MARGIN, 0)
        in_turn.end(number, 1000.0, 1000.0)
    assert 0.9 < at_once._aim[P90, 0] < 0.92  # what is aimed at is not visible from outside
    assert in_turn._aim[P90, 0] == HIGHEST


def test_a_censored_quantile_is_the_conformal_one_where_all_ended() -> None:
    """And by hand where not: of 1, 2+, 3, 4 each end takes 1 / (those left and one more)."""
    values = np.random.default_rng(4).normal(size=99)
    for level in (0.05, 0.5, 0.9, 0.99):
        found = censored_quantile(values, np.ones(99, np.bool_), np.asarray(level))
        assert float(found) == conformal_quantile(values, level)
    ended = np.array([True, False, True, True])
    found = censored_quantile(np.array([1.0, 2.0, 3.0, 4.0]), ended, np.array([0.2, 0.4, 0.7, 0.8]))
    assert found.tolist() == [1.0, 3.0, 4.0, np.inf]


def test_siblings_correct_the_bounds_as_far_as_they_were_right_and_leave_the_middle() -> None:
    """Siblings that were right ten times over are followed; where they have no opinion the prior stands."""
    mixer, prior = Mixer(SIBLINGS), 8.0 + np.arange(len(LEVELS))[None, :] / 10.0
    posterior = prior - 1.0
    for _ in range(30):
        _, held = corrected(mixer, ["kind"], prior, posterior)
        mixer.learn(int(mixer.rows(["kind"])[0]), held[0], float(posterior[0, MEDIAN]))
    said, _ = corrected(mixer, ["kind"], prior, posterior)
    assert said[0, MEDIAN] == prior[0, MEDIAN]
    assert said[0, 0] == pytest.approx(posterior[0, 0], abs=0.05)
    nothing, _ = corrected(mixer, ["kind"], prior, np.full(prior.shape, np.nan))
    assert nothing[0].tolist() == pytest.approx(prior[0].tolist())


def test_jobs_that_still_run_give_weight_to_long_ones() -> None:
    """Product-limit by hand: one of four is lost after 2 s, so what ended later stands for half as many again."""
    weight = completion_weights(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True]))
    assert weight.tolist() == pytest.approx([1.0, 0.0, 1.5, 1.5])


def test_the_floor_of_the_time_left_is_that_of_jobs_that_outlived_an_hour() -> None:
    """A thousand seconds remained of those; with too few there is no forecast."""
    log_s = np.log(np.r_[np.full(50, 400.0), np.full(50, 4600.0)])
    assert np.exp(usual_left(log_s, np.ones(100))) == pytest.approx(np.full(len(LEVELS), 1000.0))
    assert np.isnan(usual_left(log_s[: 49 + LEAST_OUTLIVED], np.ones(49 + LEAST_OUTLIVED))).all()


def test_columns_that_say_nothing_are_left_out() -> None:
    """All NaN (which scikit-learn cannot fit), constant, and repeated columns."""
    one = np.arange(5.0)
    columns = np.column_stack([one, np.full(5, np.nan), np.ones(5), one, one[::-1]])
    assert telling_columns(columns).tolist() == [0, 4]


def test_boosting_needs_a_thousand_rows_and_stands_all_nan_columns() -> None:
    """None below; above, finite and rising quantiles though a column is empty."""
    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.normal(size=LEAST_ROWS), np.full(LEAST_ROWS, np.nan)])
    log_s = rows[:, 0] + rng.normal(size=LEAST_ROWS)
    rules = BoostingRules(trees=10)
    assert fit_boosted(rows[1:], log_s[1:], np.ones(LEAST_ROWS - 1), LEVELS, rules) is None
    model = fit_boosted(rows, log_s, np.ones(LEAST_ROWS), LEVELS, rules)
    assert model is not None
    said = model.predict(rows[:50])
    assert np.isfinite(said).all()
    assert (np.diff(said, axis=1) >= 0.0).all()
    assert model.work == LEAST_ROWS * 10 * len(LEVELS)


def test_levels_that_share_bins_are_the_models_that_a_fit_of_its_own_gives() -> None:
    """With gaps, infinities, few and many values, repeated values, empty bins and weights, answers are equal."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(1700, 6))
    rows[:, 1] = rng.integers(0, 4, 1700)
    rows[:, 2] = np.where(rng.random(1700) < 0.9, 7.0, rows[:, 2])
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[:5, 3] = np.inf
    # 26 of 31 parts have the value 7: without weights a bound is half way to the next value, and its bin is empty
    rows[:, 4] = rng.permutation(np.concatenate([np.full(1040, 7.0), 8.0 + rng.random(200), np.full(460, np.nan)]))
    log_s = np.nan_to_num(rows[:, 0]) + np.where(rows[:, 4] > 7.0, 0.0, 2.0) + rng.normal(size=1700)
    asked = np.vstack([rows[:100], 10.0 * rng.normal(size=(50, 6)), np.full((1, 6), 7.2)])
    rules = BoostingRules(trees=15)
    for weight in (np.ones(1700), 1.0 + rng.exponential(size=1700)):
        shared = fit_boosted(rows, log_s, weight, LEVELS, rules)
        assert shared is not None
        for place, level in enumerate(LEVELS):
            alone = fit_boosted(rows, log_s, weight, (level,), rules)
            assert alone is not None
            assert np.array_equal(shared.models[place].predict(asked), alone.models[0].predict(asked))


def test_groups_tell_size_and_vagueness_apart() -> None:
    """A short sharp, a long sharp and a long vague forecast are three groups."""
    short, long = np.log(60.0), np.log(1e6)
    said = np.array([[short] * 7, [long] * 7, [long - 3, long - 2, long, long + 1, long + 2, long + 3, long + 4]])
    assert len(set(groups_of(said).tolist())) == 3
    assert said[0, MEDIAN] == short


def test_a_kept_promise_counts_when_its_time_is_up_and_not_before() -> None:
    """Otherwise short jobs, which end first, would represent the long ones of their day."""
    layer = Intervals()
    layer.add("job", SAID, NO_MARGIN, 0)
    layer.end("job", 10.0, 1000.0)
    layer.settle(1137.0)  # e^5 = 148.4 s from the start at 990 s
    assert layer._aim[P90, 0] == 0.9  # what is aimed at is not visible from outside
    layer.settle(1139.0)
    assert layer._aim[P90, 0] < 0.9
