"""One explanation for each action, kind and reason, kept in a file: a change of any is seen and read."""

from __future__ import annotations

import json

import pytest

from autopilot.explain.cases import CASES
from tests.golden.explanation_scenes import BUILT, REAL, Key
from tests.golden.refresh import FOLDER, explanation_of

GOLDEN: dict[str, list[str]] = json.loads((FOLDER / "words" / "explanations.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("key", sorted(CASES), ids=" ".join)
def test_the_explanation_is_the_one_on_file(key: Key) -> None:
    """Every case of the table has a golden explanation; `python -m tests.golden.refresh` writes the file."""
    assert key in REAL or key in BUILT, f"{key} has no scene in tests/golden/explanation_scenes.py"
    assert explanation_of(key) == GOLDEN[" ".join(key)]


def test_no_fact_is_missing_and_no_two_cases_read_alike() -> None:
    """Every field of a format string is on the record; only starts without victims share their words."""
    assert set(GOLDEN) == {" ".join(key) for key in CASES}
    texts = [" ".join(GOLDEN[" ".join(key)]) for key in CASES if key[2] != "leaving" and key[1] != "admit"]
    assert not [text for text in texts if "unknown" in text]
    assert len(set(texts)) == len(texts)
