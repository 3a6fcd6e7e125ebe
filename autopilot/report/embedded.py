"""All decisions of a run as data inside a page: columns and a table of strings, compressed.

A page holds at most `MOST_ON_A_PAGE` decisions; further pages beside it hold the rest, each with its own search.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from autopilot.report.data import DecisionRow

MOST_ON_A_PAGE = 20_000
"""About 2.5 MB of a page."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive decisions of one run, and their page."""

    run: str
    prefix: str  # of the anchors of this run
    file: str  # "" for the main page
    first: int  # number of the first one, from 1
    total: int  # decisions of the run
    rows: Sequence[DecisionRow]


def parts_of(runs: Sequence[tuple[str, Sequence[DecisionRow]]], most: int = MOST_ON_A_PAGE) -> tuple[Part, ...]:
    """Every decision of every run, in order; the first part of each run is on the main page."""
    found: list[Part] = []
    pages = 1
    for number, (name, rows) in enumerate(runs):
        prefix = "d-" if number == 0 else f"d{number + 1}-"
        for first in range(0, len(rows), most):
            pages += first > 0
            file = f"decisions-{pages}.html" if first else ""
            found.append(Part(name, prefix, file, first + 1, len(rows), rows[first : first + most]))
    return tuple(found)


def anchor(part: Part, row: DecisionRow) -> str:
    """The link to a decision, from the main page."""
    return f"{part.file}#{quote(part.prefix + row.id, safe='')}"


class _Strings:
    """Stores repeated texts only once."""

    def __init__(self) -> None:
        self.place: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.place.setdefault(text, len(self.place))


def packed(rows: Sequence[DecisionRow]) -> str:
    """Decisions as base64 of compressed JSON, for `unpack` of script.js. Equal rows give equal text."""
    strings = _Strings()
    columns = {
        "at": [strings(row.at) for row in rows],
        "id": [row.id for row in rows],
        "action": [strings(row.action) for row in rows],
        "workload": [strings(row.workload) for row in rows],
        "tenant": [strings(row.tenant) for row in rows],
        "answer": [strings(row.answer) for row in rows],
        "gpus": [row.gpus for row in rows],
        "gain": [round(row.benefit_gpu_s, 1) for row in rows],
        "lost": [round(row.lost_gpu_s, 1) for row in rows],
        "codes": [[strings(code) for _, code, _ in row.refusals] for row in rows],
        "why": [strings(row.why) for row in rows],
        "case": [[strings(line) for line in row.case] for row in rows],
    }
    text = json.dumps({"strings": list(strings.place), **columns}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> dict[str, list[Any]]:
    """The inverse of `packed`, as the script sees it."""
    found: dict[str, list[Any]] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found
