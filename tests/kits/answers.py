"""How fast an HTTP server answers on one connection."""

from __future__ import annotations

import time
from collections.abc import Mapping

import requests

FIRST, COUNTED = 5, 10
"""Requests of which the first are not counted: a new connection acknowledges at once."""


def fastest_s(url: str, headers: Mapping[str, str] | None = None) -> float:
    """Seconds of the fastest of some requests, with their bodies. Where a body waits for the acknowledgement of its
    head, each takes more than 0.04.
    """
    taken_s = []
    with requests.Session() as session:
        for _ in range(FIRST + COUNTED):
            began_s = time.perf_counter()
            assert session.get(url, headers=headers, timeout=10).content
            taken_s.append(time.perf_counter() - began_s)
    return min(taken_s[FIRST:])
