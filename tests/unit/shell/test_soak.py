"""`make soak`: which case comes next, what it costs to be cut, and what the table says (`scripts/soak.py`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts import soak
from scripts.soak import Book, Case, Found, spread


def book(**parts: int) -> Book:
    """A book of parts with these numbers of cases, one test each."""
    return Book({part: [Case(part, f"{part}.py", seed) for seed in range(cases)] for part, cases in parts.items()}, {})


def test_all_tests_of_a_part_take_turns_with_seeds_from_everywhere() -> None:
    """Each seed once, in the same order every time."""
    order = spread("part", {"one": 300, "two": 2})
    assert {each.test for each in order[:2]} == {"one", "two"}
    assert len(set(order)) == 302
    assert max(each.seed for each in order[:20]) > 200
    assert order == spread("part", {"one": 300, "two": 2})


def test_the_next_case_is_where_most_is_left_and_found() -> None:
    """Parts share the time, and one with violations gets more."""
    played, now_s = book(calm=100, bad=100), 0.0
    while len(played.found) < 60:
        case = played.begin(now_s)
        assert case is not None
        now_s += 60.0
        violation = "wrong" if case.part == "bad" and case.seed % 10 == 0 else ""
        played.end(case, Found(60.0, violation))
    calm, bad = len(played.done("calm")), len(played.done("bad"))
    assert calm >= 10
    assert bad > 1.5 * calm


def test_a_case_that_is_cut_fails_nothing_and_comes_again() -> None:
    """The table says how much of each part ran."""
    played = book(calm=2)
    first = played.begin(0.0)
    assert first is not None
    played.end(first, None)
    assert played.begin(1.0) == first
    played.end(first, Found(30.0, skipped="no kubectl"))
    assert played.begin(2.0) != first
    said = soak.table(played).splitlines()
    assert said[1].split() == ["calm", "1", "2", "0", "0.5"]
    assert said[2:] == ["skipped 1 times: no kubectl", "cut by the limit: calm.py 0"]


def of_file(path: Path, text: str, left_s: Callable[[], float]) -> Found | None:
    """What a file of tests finds."""
    path.write_text(text)
    return soak.run(Case("part", str(path), 1), left_s)


def test_a_case_is_judged_by_its_tests(tmp_path: Path) -> None:
    """It fails where one of them does, and names what others lack."""
    text = "import pytest\ndef test_one(): assert 1 > 2\ndef test_two(): pytest.skip('no kubectl')\n"
    found = of_file(tmp_path / "test_case.py", text, lambda: 60.0)
    assert found is not None
    assert "assert 1 > 2" in found.violation
    assert found.skipped == "no kubectl"


def test_a_case_ends_with_the_minutes(tmp_path: Path) -> None:
    """It is cut, whatever it does."""
    asked = iter([60.0, 60.0, 0.0])
    assert of_file(tmp_path / "test_case.py", "import time\ntime.sleep(60)\n", lambda: next(asked)) is None
