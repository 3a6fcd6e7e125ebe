"""Asks a Prometheus the queries of runbooks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from collectors.exporter import get_limited, http_session, reason_of

LIMIT_BYTES = 4 << 20
MOST_SERIES = 50

Series = tuple[tuple[dict[str, str], float], ...]


class QueryError(Exception):
    """A query without an answer, with the reason."""


Asker = Callable[[str], Series]
"""Evaluates a query now: the series of an instant vector, or one without labels for a scalar. Raises `QueryError`."""


class _Sample(msgspec.Struct):
    value: tuple[float, str]
    metric: dict[str, str] = {}


class _Vector(msgspec.Struct, tag_field="resultType", tag="vector"):
    result: list[_Sample]


class _Scalar(msgspec.Struct, tag_field="resultType", tag="scalar"):
    result: tuple[float, str]


class _Answer(msgspec.Struct):
    data: _Vector | _Scalar


class PrometheusAsker:
    """Queries of one Prometheus. `token` is sent as a bearer token."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 10.0) -> None:
        self._url, self._timeout_s = f"{url}/api/v1/query", timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else None

    def __call__(self, query: str) -> Series:
        """The answer now. Raises `QueryError`."""
        try:
            with http_session(1, self._headers) as session:  # asked seldom: no connection is kept
                body = get_limited(session, self._url, self._timeout_s, LIMIT_BYTES, {"query": query})
            data = msgspec.json.decode(body, type=_Answer).data
            if isinstance(data, _Scalar):
                return (({}, float(data.result[1])),)
            return tuple((sample.metric, float(sample.value[1])) for sample in data.result[:MOST_SERIES])
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise QueryError(reason_of(error)) from error


def no_prometheus(_query: str) -> Series:
    """The asker without a configured Prometheus. Always raises `QueryError`."""
    raise QueryError("no Prometheus is configured; set alerts.prometheus")
