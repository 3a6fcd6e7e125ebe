"""Implementation of `autopilot decisions`: find decisions in a journal, print them or write them as JSON, follow
a run.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from autopilot.app.commands.ask_commands import check_place
from autopilot.app.commands.json_out import STDOUT, write_lines
from autopilot.app.commands.run_commands import out, print_rows
from autopilot.app.decisions.answers import full_name
from autopilot.app.decisions.decision_rows import (
    Fresh,
    Wanted,
    clock_of,
    row_document,
    rows_of,
)
from autopilot.app.when import When, parse_moment_s
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import format_duration
from autopilot.explain.proposals import Answer, answer_words
from autopilot.explain.view import ProposalView
from autopilot.records.journal import JournalReader

DEFAULT_LIMIT = 20
LOOK_EVERY_S = 1.0
ACTION_NAMES = tuple(action.name for action in ACTIONS)
TOPS: dict[str, Callable[[ProposalView], float]] = {
    "gain": lambda row: row.proposal.benefit_gpu_s,
    "loss": lambda row: row.figures.lost_gpu_s,
}
"""Sort keys of `--top`."""
HEADINGS = ("time", "answer", "action", "workload", "tenant", "GPUs", "gain", "expected loss", "decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags of one call."""

    action: str | None = None
    workload: str | None = None
    tenant: str | None = None
    since: str | None = None
    until: str | None = None
    accepted: bool = False
    refused: bool = False
    top: str | None = None
    limit: int | None = None
    follow: bool = False
    json: Path | None = None

    def __post_init__(self) -> None:
        """Raise `InputError` for contradicting flags, or an unknown value."""
        if self.accepted and self.refused:
            raise InputError("decisions: --accepted and --refused exclude each other; leave one out")
        if self.action is not None and self.action not in ACTION_NAMES:
            raise InputError(f"--action: {self.action!r} is not one of {', '.join(ACTION_NAMES)}")
        if self.top is not None and self.top not in TOPS:
            raise InputError(f"--top: {self.top!r} is not one of {', '.join(TOPS)}")
        if self.limit is not None and self.limit < 0:
            raise InputError(f"--limit: {self.limit} must be 0 (all) or more")
        if self.follow and (self.top is not None or self.until is not None):
            raise InputError("--follow: it waits for new decisions; leave out --top and --until")
        if self.follow and self.json not in {None, STDOUT}:
            raise InputError("--follow: it prints indefinitely; write --json without a path, and redirect the output")

    @property
    def answer(self) -> Answer | None:
        """Only decisions with this answer; with `--top` accepted ones, unless the flags ask for others."""
        if self.refused:
            return Answer.REFUSED
        return Answer.ACCEPTED if self.accepted or self.top is not None else None


def run_decisions(path: Path, asked: Asked) -> None:
    """Print the matching decisions. Raises `InputError` for names that the journal does not contain."""
    check_place(asked.json, (path,))
    with JournalReader(path) as reader:
        when, last_s = clock_of(reader)
        wanted = Wanted(
            action=asked.action,
            workload=None if asked.workload is None else full_name(reader, asked.workload),
            tenant=asked.tenant,
            answer=asked.answer,
            since_s=_moment(asked.since, "--since", when, last_s, float("-inf")),
            until_s=_moment(asked.until, "--until", when, last_s, float("inf")),
        )
        rows = rows_of(reader, wanted)
        if asked.json is not None:
            write_lines(asked.json, (row_document(row, when) for row in chosen(rows, asked, 0)))
        else:
            _print(rows, asked, when)
        if asked.follow:
            for row in follow(reader, wanted):
                _print_new(row, asked, when)


def _moment(text: str | None, flag: str, when: When, last_s: float, default_s: float) -> float:
    return default_s if text is None else parse_moment_s(text, flag, when, last_s)


def chosen(rows: Iterable[ProposalView], asked: Asked, default_limit: int) -> Iterable[ProposalView]:
    """The rows within the limit (0: all): the best first with `--top`, otherwise the latest in order."""
    limit = default_limit if asked.limit is None else asked.limit
    if asked.top is None:
        return deque(rows, maxlen=limit) if limit else rows
    worth = TOPS[asked.top]
    rows = (row for row in rows if isfinite(worth(row)) and worth(row) > 0)
    return heapq.nlargest(limit, rows, key=worth) if limit else sorted(rows, key=worth, reverse=True)


def _print(rows: Iterable[ProposalView], asked: Asked, when: When) -> None:
    """Print a table of the chosen rows, and the count by answer."""
    counts: Counter[Answer] = Counter()

    def counted(rows: Iterable[ProposalView]) -> Iterator[ProposalView]:
        for row in rows:
            counts[row.answer] += 1
            yield row

    shown = list(chosen(counted(rows), asked, DEFAULT_LIMIT))
    total = sum(counts.values())
    if not total:
        out.print("no decision in this journal matches")
        return
    print_rows(HEADINGS, [cells(row_document(row, when)) for row in shown])
    parts = ", ".join(f"{counts[answer]:,} {answer_words(answer)}" for answer in Answer if counts[answer])
    cut = f"; shown: {len(shown):,} (--limit 0 for all)" if len(shown) < total else ""
    out.print(f"{total:,} decisions match: {parts}{cut}")
    out.print("details of one decision: autopilot explain DECISION")


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table, of the document of a decision."""
    moment = row["at"]
    return (
        moment.replace("T", " ").rstrip("Z") if moment else format_duration(row["at_s"]),
        answer_words(Answer(row["answer"])),
        row["action"],
        row["workload"],
        row["tenant"],
        f"{row['gpus']:,}" if row["gpus"] else "-",
        row["gain"],
        row["loss"] if row["victims"] else "-",
        row["id"] + (f"  {', '.join(row['codes'])}" if row["codes"] else ""),
    )


# --- follow -----------------------------------------------------------------------------------------


def follow(reader: JournalReader, wanted: Wanted, wait: Callable[[float], None] = time.sleep) -> Iterator[ProposalView]:
    """New decisions as the run writes them, until interrupted. Raises `InputError` if another run replaced the file."""
    fresh = Fresh()
    number, file = -1, reader.path.stat().st_ino
    bounds = reader.tick_bounds()
    for record in reader.decisions(reader.find_tick(bounds[1]) if bounds else None, refusals=False):
        number = record.number
        fresh.of(record.decision)
    while True:
        for record in reader.decisions(number + 1, refusals=False):
            number = record.number
            yield from filter(wanted.takes, fresh.of(record.decision))
        wait(LOOK_EVERY_S)
        if not reader.path.exists() or reader.path.stat().st_ino != file:
            raise InputError(f"{reader.path}: another run replaced this journal; start the command again")


def _print_new(row: ProposalView, asked: Asked, when: When) -> None:
    if asked.json is not None:
        write_lines(asked.json, (row_document(row, when),))
        return
    out.print("  ".join(cells(row_document(row, when))))
