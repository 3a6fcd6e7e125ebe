"""The table of `scripts/signals.yaml`, and how it differs from what the source reads.

The names of metrics come from the tables of the collectors; the table says who writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from autopilot.core.hardware import dcgm
from collectors.promql import Labels
from collectors.slo.sources import SOURCES
from scripts.signal_reads import ROOT, Read

TABLE = ROOT / "scripts" / "signals.yaml"
DOCS = (
    "workload-contract",
    "checkpoints",
    "control-resources",
    "scaling",
    "install",
    "operations",
    "playground",
    "limits",
    "shared-gpus",
)
"""Pages that tell what our own names mean."""

OF_OBJECTS = {"label", "annotation", "taint", "resource", "name"}
"""Kinds of names with the same form: a constant does not tell its kind."""

_METRIC = re.compile(r"([A-Za-z_:][\w:]*)\{")
_BY = re.compile(r"(?:by|without) \(([^()]*)\)")
_FROM = re.compile(r'"\$\$?1","([^"]+)"')
_MATCHED = re.compile(r'[{,]\s*([A-Za-z_]\w*)(?:=~|!=|=)"')


_PARTS = ("_bucket", "_seconds_count", "_duration_count", "_time_count", "_milliseconds_count", "_tokens_sum")


class Signal(NamedTuple):
    """One row: a name, who writes it, since when, what its absence means, and where the tests make it."""

    name: str
    writer: str
    since: str
    absent: str
    made_in: str


class Group(NamedTuple):
    """The rows of one kind of name on one kind of object."""

    title: str
    kind: str
    text: str
    rows: tuple[Signal, ...]


class Family(NamedTuple):
    """Metrics whose names come from a table of the collectors."""

    title: str
    names: tuple[str, ...]
    writer: str
    since: str
    absent: str
    made_in: tuple[str, ...]
    prefixes: tuple[tuple[str, ...], ...] = ()  # that stand for each other, before the same names

    @property
    def short(self) -> tuple[str, ...]:
        """The names with the first of their prefixes, without the parts of a histogram."""
        other = {prefix: each[0] for each in self.prefixes for prefix in each[1:]}
        found = []
        for name in self.names:
            prefix = max((each for each in other if name.startswith(each)), key=len, default="")
            whole = other.get(prefix, "") + name.removeprefix(prefix)
            found.append(re.sub(r"_(?:bucket|count|sum)$", "", whole) if name.endswith(_PARTS) else whole)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, and what is none: `no_signals` by name, `not_fixed` by file and expression, each with its reason."""

    groups: tuple[Group, ...]
    families: tuple[Family, ...]
    own: tuple[str, ...]
    no_signals: Mapping[str, str]
    not_fixed: Mapping[tuple[str, str], str]


def load(path: Path = TABLE) -> Table:
    """The table of a file."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    groups = tuple(
        Group(
            each["title"],
            each["kind"],
            each.get("text", ""),
            tuple(Signal(name, *(str(cell) for cell in row)) for name, row in each["rows"].items()),
        )
        for each in found["groups"]
    )
    families = [_family("DCGM fields", tuple(dcgm.BY_NAME), found["dcgm"])]
    for each in SOURCES:
        names = tuple(dict.fromkeys((*_metrics_of(each.queries), *filter(None, each.mean))))
        family = _family(each.words, names, found["servers"].get(each.name))
        families.append(family._replace(prefixes=tuple(part.prefixes for part in each.families)))
    not_fixed = {(file, text): why for file, text, why in found["not_fixed"]}
    return Table(groups, tuple(families), tuple(found["own"]), found["no_signals"], not_fixed)


def differences(table: Table, reads: Iterable[Read]) -> Iterator[str]:
    """What is read without a row, and rows of what is not read."""
    rows = {(_alike(group.kind), row.name) for group in table.groups for row in group.rows}
    rows |= {("metric", name) for family in table.families for name in family.names}
    labels = dict.fromkeys(Labels.__struct_fields__, "collectors/promql.py")
    labels |= dict.fromkeys(_series_labels(), "collectors/slo/sources.py")
    read = {("series label", name): where for name, where in labels.items() if name not in table.no_signals}
    for each in reads:
        path = each.where.rpartition(":")[0]
        if not each.name:
            if (path, each.text) not in table.not_fixed:
                yield f"{each.where}: the {each.kind} {each.text} is read, and its names cannot be followed"
        elif each.name not in table.no_signals and not each.name.startswith(table.own):
            read[_alike(each.kind), each.name] = each.where
    yield from (
        f"{where}: {kind} {name} is read and has no row"
        for (kind, name), where in read.items()
        if (kind, name) not in rows
    )
    yield from (f"the metrics of {each.title} are read and have no row" for each in table.families if not each.writer)
    written = {("metric", name) for family in table.families for name in family.names}
    yield from (f"{kind} {name} has a row and is not read" for kind, name in sorted(rows - read.keys() - written))


def unmade(table: Table) -> Iterator[str]:
    """Rows whose name is not in the file of the tests that they state."""
    for group in table.groups:
        for row in group.rows:
            begins = row.name.endswith(("/", "-", ".")) or group.kind == "reason"
            end = "" if begins else r"(?![\w-])"
            if not re.search(rf"(?<![\w./-]){re.escape(row.name)}{end}", _text(row.made_in)):
                yield f"{group.title}: {row.name} is not made in {row.made_in}"
    for family in table.families:
        text = "".join(map(_text, family.made_in))
        for name in family.names:
            if not any(tail in text for tail in _tails(name)):
                yield f"{family.title}: {name} is not made in {', '.join(family.made_in)}"


def own_names(table: Table, reads: Iterable[Read]) -> dict[str, str]:
    """Each name of ours that is read -> the page that tells what it means; "" for none."""
    pages = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in DOCS}
    names = sorted({each.name for each in reads if each.name.startswith(table.own) and each.name not in table.own})
    rows = {row.name for group in table.groups for row in group.rows}
    found = {}
    for name in names:
        short = name.partition("/")[2]
        told = (page for page, text in pages.items() if name in text or f"`{short}`" in text)
        if name not in rows and name not in table.no_signals:
            found[name] = next(told, "")
    return found


def _family(title: str, names: tuple[str, ...], row: list[Any] | None) -> Family:
    writer, since, absent, made_in = row or ["", "", "", []]
    return Family(title, names, writer, since, absent, tuple(made_in))


def _metrics_of(queries: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for query in queries.values() for name in _METRIC.findall(query)))


def _series_labels() -> set[str]:
    """The labels that the queries of services name."""
    found = set()
    for query in (query for source in SOURCES for query in source.queries.values()):
        for pattern in (_BY, _FROM, _MATCHED):
            found |= {name.strip() for names in pattern.findall(query) for name in names.split(",")}
    return found


def _alike(kind: str) -> str:
    return "name" if kind in OF_OBJECTS else kind


def _tails(name: str) -> Iterator[str]:
    """A metric without its suffix, and without more and more of its prefix: two words at least."""
    words = re.split(r"(?<=[_:])", re.sub(r"_(?:bucket|count|sum)$", "", name))
    for first in range(max(len(words) - 1, 1)):
        yield "".join(words[first:])


@cache
def _text(path: str) -> str:
    """The text of a file of the checkout, or of all files of a folder; "" where it is none."""
    place = ROOT / path
    if place.is_dir():
        return "\n".join(each.read_text(encoding="utf-8") for each in sorted(place.rglob("*.py")))
    return place.read_text(encoding="utf-8") if place.is_file() else ""
