"""Implementation of `autopilot audit`: verify the log, or list entries."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from autopilot.app.commands.json_out import write_json, write_lines
from autopilot.app.commands.run_commands import out, print_rows
from autopilot.app.when import When, parse_moment_s
from autopilot.core.model.errors import InputError, unknown_name
from autopilot.printable import printable
from autopilot.records.audit.entry import Entry, Kind
from autopilot.records.audit.keys import public_key
from autopilot.records.audit.verify import Report, check_folder, parse_head, read_entries, verify

DEFAULT_LIMIT = 20
HEADINGS = ("number", "time", "kind", "who", "role", "from", "subject", "state", "facts")


def run_verify(place: Path, keys: Sequence[Path], heads: Sequence[str], json_out: Path | None) -> None:
    """Print the checks and their findings. Exits with 1 if the log is not intact."""
    check_folder(place)
    expected = [parse_head(text) for text in heads]
    report = verify(place, [public_key(path) for path in keys or (place.with_name(f"{place.name}.key.pub"),)], expected)
    if json_out is not None:
        write_json(json_out, _document(report))
    else:
        _print(place, report, exported=bool(expected))
    if not report.intact:
        raise typer.Exit(1)


def _print(place: Path, report: Report, *, exported: bool) -> None:
    for problem in report.problems:
        where = f"{place / problem.file}:{problem.line}: " if problem.file else ""
        out.print(f"{where}{problem.reason}", soft_wrap=True)
    found = "intact" if report.intact else "NOT INTACT"
    open_lines = report.head.sequence - report.sealed.sequence - (report.seals > 0)
    out.print(
        f"{place}: {found}; {report.entries:,} entries, {report.seals:,} valid seals, head {report.head}",
        soft_wrap=True,
    )
    if report.intact and open_lines > 0:
        out.print(f"The last {open_lines:,} entries have no seal yet.")
    if report.intact and not exported:
        out.print("Lines cut from the end are noticed only with --head and a head that was exported before.")


def _document(report: Report) -> dict[str, Any]:
    return {
        "intact": report.intact,
        "entries": report.entries,
        "seals": report.seals,
        "head": str(report.head),
        "sealed": str(report.sealed),
        "problems": [
            {"file": problem.file, "line": problem.line, "reason": problem.reason} for problem in report.problems
        ],
    }


def run_show(
    folder: Path,
    who: str | None,
    kind: str | None,
    subject: str | None,
    since: str | None,
    limit: int | None,
    json_out: Path | None,
) -> None:
    """Print or write the chosen entries."""
    if kind is not None and kind not in set(Kind):
        raise InputError(f"--kind: unknown kind {kind!r}; {unknown_name(kind, [str(each) for each in Kind])}")
    if limit is not None and limit < 0:
        raise InputError(f"--limit: {limit} is negative; 0 shows all")
    since_s = float("-inf") if since is None else parse_moment_s(since, "--since", When(0.0), time.time())
    chosen = (
        entry
        for entry in _intact(folder)
        if (who is None or entry.event.who == who)
        and (kind is None or entry.event.kind == kind)
        and (subject is None or entry.event.subject == subject)
        and datetime.fromisoformat(entry.at).timestamp() >= since_s
    )
    most = (0 if json_out is not None else DEFAULT_LIMIT) if limit is None else limit
    entries = deque(chosen, maxlen=most or None)
    if json_out is not None:
        write_lines(json_out, (_entry_document(entry) for entry in entries))
        return
    if not entries:
        out.print("No entry matches.")
        return
    print_rows(HEADINGS, [_cells(entry) for entry in entries])


def _intact(folder: Path) -> Iterator[Entry]:
    for path, number, entry in read_entries(folder):
        if isinstance(entry, ValueError):
            out.print(f"{path}:{number}: skipped: {entry}", soft_wrap=True)
            continue
        yield entry


def _entry_document(entry: Entry) -> dict[str, Any]:
    event = entry.event
    return {
        "sequence": entry.sequence,
        "at": entry.at,
        "kind": str(event.kind),
        "who": event.who,
        "role": event.role,
        "origin": event.origin,
        "subject": event.subject,
        "state_digest": event.state_digest,
        "facts": dict(event.facts),
    }


def _cells(entry: Entry) -> tuple[str, ...]:
    event = entry.event
    facts = " ".join(f"{name}={_short(value)}" for name, value in event.facts.items())
    texts = (event.who, event.role, event.origin, event.subject, event.state_digest[:12], facts)
    return (
        str(entry.sequence),
        entry.at[:19].replace("T", " "),
        str(event.kind),
        *(printable(text) for text in texts),
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."
