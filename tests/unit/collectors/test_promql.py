"""Answers of a Prometheus: one series that cannot be read hides no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collectors.promql import AnswerError, decode

GOOD = {"metric": {"UUID": "GPU-1"}, "value": [1.0, "7"]}


def answer(*rows: Any, **more: Any) -> bytes:
    """An instant vector."""
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}, **more}).encode()


@pytest.mark.parametrize(
    "bad",
    [
        7,
        {},
        {"metric": {"UUID": 7}, "value": [1.0, "7"]},
        {"metric": {}, "value": [1.0, "many"]},
        {"metric": {}, "value": ["x", "7"]},
        {"metric": {}, "value": [1.0, {"deep": [[[]]]}]},
        {"metric": [], "value": None},
    ],
)
def test_a_series_that_cannot_be_read_is_left_out_and_named(bad: Any) -> None:
    """The others count, and a warning says what was left out."""
    rows, warnings = decode(answer(GOOD, bad, GOOD))
    assert [row.value[1] for row in rows] == ["7", "7"]
    assert len(warnings) == 1
    assert "series" in warnings[0]


def test_an_answer_that_is_none_is_one_error() -> None:
    """Also one that is nested too deeply."""
    for body in (b"<html>", b"[" * 5000, b'{"status": 7}'):
        with pytest.raises(AnswerError, match="not a Prometheus response"):
            decode(body)
    with pytest.raises(AnswerError, match="no such metric"):
        decode(answer(status="error", error="no such metric"))
