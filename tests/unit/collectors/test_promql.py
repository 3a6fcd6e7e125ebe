"""Answers of a Prometheus: one series that cannot be read hides no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collectors.promql import AnswerError, decode, series_of

GOOD = {"metric": {"UUID": "GPU-1"}, "value": [1.0, "7"]}


DEEP = "<deep>"
"""Stands for 3,000 brackets."""


def answer(*rows: Any, **more: Any) -> bytes:
    """An instant vector."""
    text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}, **more})
    return text.replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000).encode()


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
        {"metric": {"UUID": DEEP}, "value": [1.0, "7"]},
    ],
)
def test_a_series_that_cannot_be_read_is_left_out_and_named(bad: Any) -> None:
    """The others count, and a warning says what was left out."""
    rows, warnings, partial = decode(answer(GOOD, bad, GOOD))
    assert not partial
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


# --- one odd series -------------------------------------------------------------------------------


PLAIN = '{"metric":{"pod":"a"},"value":[1,"2"]}'


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ('{"metric":{"pod":"b"},"value":[1,"x\\u001by"]}', r"series {pod='b'} with value 'x\x1by' cannot be read"),
        ('{"metric":{"pod":7},"value":[1,"2"]}', "series {pod=7} with value '2' cannot be read"),
        ('{"metric":{"pod":"b"},"value":[1]}', "series {pod='b'} with value a list with 1 entries cannot be read"),
        ('{"metric":[],"value":null}', "series a list with 0 entries with value None cannot be read"),
        ('{"metric":{"pod":"' + "b" * 5000 + '"},"value":7}', "... (5000 characters)} with value 7 cannot be read"),
        ("[" * 300 + "]" * 300, "cannot be read"),
        ('{"metric":{"pod":' + "[" * 3000 + "]" * 3000 + '},"value":[1,"2"]}', "series {pod=a list with 1 entries}"),
        ('{"metric":{"pod":"b"},"value":[' + "9" * 5000 + ',"2"]}', "cannot be read"),
        ('7,{"metric":{"pod":"c"},"value":[1,"no"]}', "2 series do not count; the first: series"),
        ('{"metric":{"pod":"b"},"value":[1,"2"]},{"metric":{"pod":"b"},"value":[1,"3"]}', "another value before, '2'"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_one_odd_series_is_named_and_the_others_count(odd: str, words: str, *, first: bool) -> None:
    """So it is wherever it stands in the answer. Its text is cut, and without control characters."""
    result = f"{odd},{PLAIN}" if first else f"{PLAIN},{odd}"
    body = '{"status":"success","data":{"resultType":"vector","result":[' + result + "]}}"
    rows, text = series_of(body.encode())
    assert [(row.metric, row.value[1]) for row in rows] == [({"pod": "a"}, "2")]
    assert words in text
    assert text.isprintable()
    assert len(text) < 500


def test_an_answer_that_is_none_or_an_error_is_refused() -> None:
    """Its reason is that of the Prometheus."""
    with pytest.raises(AnswerError, match="no such query"):
        series_of(b'{"status":"error","error":"no such query"}')
    with pytest.raises(AnswerError, match="not a Prometheus response"):
        series_of(b'{"status":"success","data":{"result":' + b"[" * 3000)
