"""JSON of annotations, which anybody may have written, and values in messages."""

from __future__ import annotations

import json

import pytest

from autopilot.contract.notes import MOST_CHARS, read_json, read_record, shown
from autopilot.contract.scaling import read_ceiling, read_floor

CEILING = {"id": "a", "replicas": 1, "until": 9e9, "owner": 2, "ours": 1, "generation": 3, "revision": "1"}
FLOOR = {"id": "a", "replicas": 1, "until": 9e9, "way": "scale", "owner": 2, "ours": 1}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[" * 3000, "1" * 30, "1" * 5000, "NaN", "-Infinity", "1e999", '"x"' * 2),
        '{"a":' * 17 + "1" + "}" * 17,
        json.dumps("x" * MOST_CHARS),
    ],
)
def test_what_is_no_plain_json_is_refused(text: str) -> None:
    """Depth, length, whole numbers of any size, and numbers that are none: one kind of error for all."""
    with pytest.raises(ValueError, match=r".*"):
        read_json(text)
    assert read_record(text) == {}


def test_a_record_of_ours_is_read() -> None:
    """Three levels, numbers and texts."""
    record = {"id": "0/p", "gpus": {"0": "0/p"}, "deadline": 1.5, "epoch": 2**53, "list": [[1], [2]] * 10}
    assert read_record(json.dumps(record)) == record
    assert read_record("[1]") == {}


@pytest.mark.parametrize("name", ["replicas", "owner", "ours", "generation"])
@pytest.mark.parametrize("value", [-1, 10**20, 10**10, 1e30, True, "1", None, [1]])
def test_numbers_of_floors_and_ceilings_are_bounded(name: str, value: object) -> None:
    """They go into int32 columns."""
    assert read_ceiling(json.dumps(CEILING)) is not None
    assert read_ceiling(json.dumps(CEILING | {name: value})) is None
    if name in {"owner", "ours"} and value is not None:
        assert read_floor(json.dumps(FLOOR | {name: value})) is None


def test_values_are_shown_short_and_without_control_characters() -> None:
    """A message ends up in terminals, logs and tables."""
    assert shown("a\x1b[31m\n") == r"'a\x1b[31m\n'"
    assert shown("x" * 100) == repr("x" * 60) + "... (100 characters)"
    assert shown({"a": 1}) == "an object with 1 entries"
    assert (shown(7), shown(10**5000)) == ("7", "a number with thousands of digits")
