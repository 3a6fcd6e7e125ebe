from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autopilot.core.model.units import (
    GPU_TIME,
    counted,
    format_clock,
    format_duration,
    format_gpu_s,
    format_moment,
    number,
)


@pytest.mark.parametrize(
    ("value_s", "said"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "never"),
        (0.0, "0 s"),
        (1.25, "1.2 s"),
        (-45.0, "-45 s"),
        (119.0, "119 s"),
        (125.0, "2 min"),
        (3600.0, "1 h"),
        (12_000.0, "3 h 20 min"),
        (86_399.0, "23 h 59 min"),
        (86_400.0, "1 d"),
        (86_700.0, "1 d 5 min"),
        (183_900.0, "2 d 3 h 5 min"),
        (-183_900.0, "-2 d 3 h 5 min"),
    ],
)
def test_a_duration_keeps_its_minutes_past_a_day(value_s: float | None, said: str) -> None:
    """Seconds up to two minutes, then minutes, however long it is; parts that are zero are left out."""
    assert format_duration(value_s) == said


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "GPU", "1 GPU"),
        (0, "GPU", "0 GPUs"),
        (0.5, "GPU", "0.5 GPUs"),
        (2_000, "step", "2,000 steps"),
        (1, "GPU is|GPUs are", "1 GPU is"),
        (3, "GPU is|GPUs are", "3 GPUs are"),
    ],
)
def test_a_count_has_its_noun_in_the_right_number(count: float, noun: str, words: str) -> None:
    """One is singular, everything else plural; an irregular phrase gives both forms."""
    assert counted(count, noun) == words


@pytest.mark.parametrize(
    ("at_s", "now_s", "words"),
    [
        (19_560.0, 65_374.0, "5 h 26 min after the start of the run"),
        (1_790_000_000.0, 1_790_000_026.0, "26 s ago"),
        (1_790_007_200.0, 1_790_000_000.0, "in 2 h"),
        (float("nan"), 1_790_000_000.0, "at an unknown time"),
    ],
)
def test_a_moment_is_told_from_the_start_of_a_run_or_from_now(at_s: float, now_s: float, words: str) -> None:
    """The clock of a live cluster counts from 1970, where a time since its start means nothing."""
    assert format_moment(at_s, now_s) == words


@pytest.mark.parametrize(
    ("at_s", "words"),
    [
        (65_374.0, "18 h 9 min"),
        (1_795_608_801.7, "2026-11-25 12:13:21 UTC"),
        (1_709_164_800.0, "2024-02-29 00:00:00 UTC"),
        (1_735_689_599.0, "2024-12-31 23:59:59 UTC"),
        (253_402_300_799.0, "9999-12-31 23:59:59 UTC"),
        (float("nan"), "-"),
        (float("inf"), "never"),
    ],
)
def test_a_time_of_a_run_is_a_date_where_times_count_from_1970(at_s: float, words: str) -> None:
    """Days since 1970 tell a reader nothing."""
    assert format_clock(at_s) == words


@pytest.mark.parametrize(
    ("value_gpu_s", "words"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0 GPU-h"),
        (8640.0, "2.4 GPU-h"),
        (1800.0, "0.5 GPU-h"),
        (402.0, "0.112 GPU-h"),
        (359.0, "5.98 GPU-min"),
        (90.0, "1.5 GPU-min"),
        (0.004, "0.004 GPU-s"),
        (-180.0, "-3 GPU-min"),
        (65_886.0, "18.3 GPU-h"),
        (1_363_309_200.0, "379,000 GPU-h"),
    ],
)
def test_gpu_time_is_told_in_hours_from_a_tenth_on(value_gpu_s: float | None, words: str) -> None:
    """Hours, below a tenth of one minutes, below a tenth of one seconds."""
    assert format_gpu_s(value_gpu_s) == words


@given(st.floats(-1e12, 1e12).filter(lambda each: abs(each) > 1e-9))
@example(359.9999)
@example(5.9999)
@example(1e-9)
def test_gpu_time_keeps_three_significant_digits(value_gpu_s: float) -> None:
    """What is not 0 is never told as 0, and reads within half of its third digit, in one of three units."""
    amount, unit = format_gpu_s(value_gpu_s).split(" ")
    size = {name: each for name, each, _ in GPU_TIME}[unit]
    told = float(amount.replace(",", ""))
    assert told != 0
    assert math.isclose(told * size, value_gpu_s, rel_tol=0.00501)
    assert len(f"{told:e}".split("e")[0].strip("-0").replace(".", "").rstrip("0")) <= 3
    assert unit == "GPU-s" or abs(told) >= 0.1


@pytest.mark.parametrize(("value", "words"), [(6.16943, "6.17"), (0.863724, "0.864"), (12, "12"), (12_345.6, "12,346")])
def test_a_number_has_three_significant_digits_or_all_before_the_point(value: float, words: str) -> None:
    """More digits than a person compares say nothing."""
    assert number(value) == words
