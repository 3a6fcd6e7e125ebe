"""Quantities: values, canonical texts, and what a pod asks of its node."""

from __future__ import annotations

from fractions import Fraction

import pytest

from apiserver.pod_requests import pod_requests
from apiserver.quantity import as_text, canonical, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1e3", "1k"),
        ("100k", "100k"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("65536", "65536"),
        ("0", "0"),
        ("0.0000000001", "1n"),
        ("-2", "-2"),
    ],
)
def test_canonical_keeps_the_value_and_the_family_of_suffixes(text: str, expected: str) -> None:
    """The text is that of a real server: the largest suffix that leaves a whole number."""
    assert canonical(text) == expected


@pytest.mark.parametrize("text", ["", "1 Gi", "four", "1Kib", "1e", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """The message shows the text."""
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)


def test_values_are_exact() -> None:
    """No rounding through floats."""
    assert parse("100m") * 10 == 1
    assert parse("9007199254740993") == 9007199254740993
    assert as_text(Fraction(9007199254740993)) == "9007199254740993"


def _asks(cpu: str, **more: object) -> dict[str, object]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


def test_sidecars_count_beside_containers_and_init_containers_one_at_a_time() -> None:
    """The larger of the running sum and the peak of the start counts."""
    spec = {"containers": [_asks("1")], "initContainers": [_asks("2", restartPolicy="Always"), _asks("500m")]}
    assert pod_requests(spec) == {"cpu": 3}
    spec["initContainers"].append(_asks("4"))
    assert pod_requests(spec) == {"cpu": 6}


def test_a_limit_stands_in_for_a_request_and_overhead_is_added() -> None:
    """GPUs are often given as limits alone."""
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}], "overhead": {"cpu": "250m"}}
    assert pod_requests(spec) == {"nvidia.com/gpu": 2, "cpu": Fraction(1, 4)}
