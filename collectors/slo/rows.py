"""Parts of the series that a Prometheus answers with."""

from __future__ import annotations

import math
from collections.abc import Iterable

from collectors.slo.queries import PLACE
from collectors.slo.sources import Source


def number(text: str) -> float:
    """The value of a series; NaN for a text that is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def pod_of(source: Source, engine: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """The labels of the place of an engine, else the name of its service."""
    labels = frozenset(engine)
    return frozenset(each for each in labels if each[0] in PLACE) or frozenset(
        each for each in labels if each[0] in source.by
    )
