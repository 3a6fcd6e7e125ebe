from __future__ import annotations

import pytest

from autopilot.core.model.units import counted, format_clock, format_duration, format_moment


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
