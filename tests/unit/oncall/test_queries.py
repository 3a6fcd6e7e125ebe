"""A Prometheus that fails in each of its ways: the evidence says why, and an unknown value verifies nothing."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable

import pytest

from autopilot.oncall.queries import LIMIT_BYTES, MOST_SERIES, PrometheusAsker, QueryError
from tests.e2e.test_prometheus_collector import serving


def _vector(*values: str, **more: object) -> bytes:
    result = [{"metric": {"n": str(at)}, "value": [1.0, value]} for at, value in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()


def _asked(answer: Callable[[str], tuple[int, bytes]], timeout_s: float = 5.0) -> object:
    with serving(answer) as url:
        try:
            return PrometheusAsker(url.rsplit("/metrics", 1)[0], timeout_s=timeout_s)("up")
        except QueryError as error:
            return str(error)


def test_values_that_are_no_numbers_stay_what_they_are() -> None:
    """NaN and infinity are passed on; what compares them knows that they verify nothing."""
    found = _asked(lambda _: (200, _vector("NaN", "+Inf", "3.5")))
    assert isinstance(found, tuple)
    values = [value for _, value in found]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, 3.5]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (422, b'{"status":"error","errorType":"execution","error":"many-to-many matching"}', "HTTP 422"),
        (503, b"starting", "HTTP 503"),
        (200, b"<html>a proxy</html>", "malformed"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "matrix"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{}}]}}', "value"),
        (200, _vector("many"), "could not convert"),
        (200, b" " * (LIMIT_BYTES + 1), "longer than"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_reason(status: int, body: bytes, words: str) -> None:
    """One line for the alert."""
    found = _asked(lambda _: (status, body))
    assert isinstance(found, str)
    assert words in found, found
    assert "\n" not in found


def test_a_slow_prometheus_is_given_up() -> None:
    """After its time limit, long before it answers."""
    done = threading.Event()

    def slow(_: str) -> tuple[int, bytes]:
        done.wait(60.0)
        return 200, _vector("1")

    with serving(slow) as url:
        with pytest.raises(QueryError, match="no whole answer within"):
            PrometheusAsker(url.rsplit("/metrics", 1)[0], timeout_s=0.3)("up")
        done.set()


def test_one_that_is_down_is_a_reason() -> None:
    """Nobody listens there."""
    with pytest.raises(QueryError):
        PrometheusAsker("http://127.0.0.1:9", timeout_s=1.0)("up")


def test_a_long_answer_is_cut() -> None:
    """A runbook shows some series; the storm of a wrong query does not fill the alert."""
    found = _asked(lambda _: (200, _vector(*["1"] * 500)))
    assert isinstance(found, tuple)
    assert len(found) == MOST_SERIES


def test_warnings_of_a_partial_answer_do_not_hide_it() -> None:
    """Prometheus answers with what it could read."""
    found = _asked(lambda _: (200, _vector("2", warnings=["remote read: one store did not answer"])))
    assert found == (({"n": "0"}, 2.0),)
