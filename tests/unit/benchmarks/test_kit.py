"""Measured rows survive an interruption, goals decide the exit code, and runs are told by their options."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.kit import ended, judged, measured
from benchmarks.runs import Call, changes_of


@dataclass(frozen=True)
class Row:
    """A figure and how often it was measured before."""

    value: int


def doubled(value: int) -> Row:
    """In a process of its own."""
    return Row(2 * value)


def failing(value: int) -> Row:
    """It must not be asked again."""
    raise AssertionError(value)


def test_a_row_that_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    """Rows come in the order of the calls, and the file has each once."""
    kept = str(tmp_path / "rows.jsonl")
    assert measured({"b": 2}, doubled, Row, keep=kept) == [Row(4)]
    assert measured({"a": 1, "b": 2}, doubled, Row, keep=kept) == [Row(2), Row(4)]
    assert measured({"b": 2, "a": 1}, failing, Row, keep=kept) == [Row(4), Row(2)]
    assert len(Path(kept).read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize(("value", "sound", "code"), [(0.9, True, 0), (1.1, True, 1), (0.9, False, 1)])
def test_a_missed_goal_or_an_unsound_run_fails(value: float, sound: bool, code: int) -> None:
    """The exit code is that of the command."""
    assert ended(Namespace(json=None), ("what", "s"), [("x", judged(value, 1.0))], {}, sound=sound) == code


def test_a_baseline_has_no_fields_to_change() -> None:
    """The changes of a call are for the policies of the autopilot beside it."""
    both = "protection.most_stops=3,modes.recover=off"
    assert changes_of(Call("demo", "autopilot", policy_set=both)) == ("protection.most_stops=3", "modes.recover=off")
    assert changes_of(Call("demo", "static", policy_set=both)) == changes_of(Call("demo", "autopilot")) == ()
