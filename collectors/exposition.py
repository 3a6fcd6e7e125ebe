"""Bulk parser for Prometheus text of GPU exporters.

An exporter repeats the same labels in every scrape, so a line's head (`NAME{...}`) is parsed once and looked up
afterwards: what remains per line is a dictionary look-up and a number. Lines with an unknown head or a timestamp go
through one regular expression. Tests compare the result with `prometheus_client.parser` on the same texts.

Of several samples of one field and entity the largest counts (`max by (UUID, GPU_I_ID)`): pods that share a GPU each
get a copy of the device's sample, per-process samples are never above it, and a GPU that two exporters report is still
one GPU. Board-level fields of an instance belong to its board. A series that one text has twice with different values
is invalid: the field of its entity is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autopilot.contract.notes import shown
from autopilot.core.hardware import dcgm
from autopilot.core.hardware.xid_facts import remedies
from autopilot.core.model.snapshot import F32, F64, I8, I32, Bools, Texts
from collectors.entities import NODE_LABELS, PROFILED, Entities, activity, dead_counters, fill_boards

_LINE = re.compile(
    # possessive, so that no text causes backtracking
    r"\s*([A-Za-z_:][\w:]*+)\s*+"
    r'(?:\{((?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+)\})?'
    r"\s*+([^\s{]\S*+)(?:\s++-?\d+)?\s*",
    re.ASCII | re.DOTALL,
)
_LABEL = re.compile(r'\s*([A-Za-z_]\w*+)\s*=\s*"((?:[^"\\]++|\\.)*+)"\s*(?:,|$)', re.ASCII | re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}

_IGNORED, _MALFORMED = -1, -2
_LONGEST_ID = 253
_FIELD_ROW = {number: row for row, number in enumerate(dcgm.FIELDS)}
_PROFILED = np.array([_FIELD_ROW[number] for number in PROFILED])
_FEW_ROWS = 50_000  # with fewer lines there is no memory worth reclaiming

_LINK_LABELS = ("nvlink", "nvswitch", "gpu_uuid")


def split_line(line: str) -> tuple[str, dict[str, str], str] | None:
    """`(name, labels, number as written)` of one sample line, or None when it is malformed.

    Escapes in label values are resolved; a timestamp is dropped (exporters send none).
    """
    match = _LINE.fullmatch(line)
    if not match:
        return None
    labels = _labels((match[2] or "").rstrip())
    return None if labels is None else (match[1], labels, match[3])


@lru_cache(maxsize=64)
def _labels(text: str) -> dict[str, str] | None:
    """Labels from the text between the braces, None when malformed. An exporter repeats them by metric."""
    labels: dict[str, str] = {}
    end = 0
    while end < len(text):
        part = _LABEL.match(text, end)
        if not part:
            return None
        value = part[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), value)
        labels[part[1]] = value
        end = part.end()
    return labels


def parse(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Every sample of a text: name, labels, value. Malformed lines are skipped."""
    for line in text.split("\n"):
        parts = split_line(line) if line.strip() and not line.lstrip().startswith("#") else None
        if parts:
            number = _number(parts[2])
            if number is not None:
                yield parts[0], parts[1], number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


Refused = tuple[str, str, dcgm.Fault]


@dataclass(frozen=True, slots=True)
class Frame:
    """One scrape round by entity: `values` [signals, entities], NaN for unknown.

    `extras` holds the latest health facts (dcgm.EXTRAS) [entities]; `faults` names the numbers that were
    refused, as (entity id, field, dcgm.Fault), and `said` the first text of each that is neither blank nor "NaN";
    `malformed` the first bad line and the count by text.
    """

    entity_ids: Texts
    nodes: tuple[str, ...]
    values: F32
    quality: I8
    extras: dict[str, F64]
    faults: tuple[Refused, ...]
    said: dict[Refused, str]
    malformed: dict[int, tuple[int, str]]
    lines: I32  # samples that were used, by text
    recut: frozenset[str]


Owner = tuple[str, str, str]
"""Namespace, pod, and container ("" where no label names it)."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Samples with a pod label: one row each, values in signal units."""

    entity_ids: tuple[str, ...]
    owners: tuple[Owner, ...]
    util_ratio: F64
    fb_used_mib: F64


class Scanner:
    """Reads texts of the same exporters repeatedly."""

    def __init__(self) -> None:
        self.entities = Entities()
        self._heads: dict[str, int] = {}
        self._field: list[int] = []
        self._entity: list[int] = []
        self._xid: dict[int, float] = {}  # of the rows that count one code
        self._owner: list[tuple[Owner, Owner]] = []  # (exported, plain)
        self._target: list[tuple[str, str]] = []  # who was scraped: job and instance, or the node
        self._renamed: set[tuple[str, str]] = set()  # those that have samples with exported_pod
        self._fields: NDArray[np.intp] = np.empty(0, np.intp)
        self._columns: NDArray[np.intp] = np.empty(0, np.intp)
        self._used: NDArray[np.int64] = np.empty(0, np.int64)
        self._round = 0
        self._purged = (0, 0)  # round and lines known at the last purge
        self._present: NDArray[np.intp] = np.empty(0, np.intp)
        self._there: Bools = np.empty(0, np.bool_)
        self._ids: Texts = np.empty(0, object)
        self._rows: NDArray[np.intp] = np.empty(0, np.intp)
        self._cleaned: F64 = np.empty(0)

    def scan(self, texts: Iterable[str], nodes: Iterable[str] = ()) -> Frame:
        """Read the texts of one round into one frame. `nodes` names the node of each text, "" unknown."""
        self._round += 1
        heads, named = self._heads, iter(nodes)
        rows: list[int] = []
        numbers: list[str] = []
        malformed: dict[int, tuple[int, str]] = {}
        ends: list[int] = []
        for index, text in enumerate(texts):
            node = next(named, "")
            for line in text.split("\n"):
                head, _, tail = line.rpartition(" ")
                row = heads.get(head)
                if row is None:
                    row, tail = self._learn(line, head, tail, node)
                    if row == _MALFORMED:
                        count, first = malformed.get(index, (0, line))
                        malformed[index] = (count + 1, first)
                if row >= 0:
                    rows.append(row)
                    numbers.append(tail)
            ends.append(len(rows))
        frame = self._frame(np.array(rows, np.intp), numbers, malformed, np.diff([0, *ends]))
        self._purge()
        return frame

    def there(self) -> Iterator[tuple[str, str, str, bool, str]]:
        """(id, profile, node, True if in the last round, name by the driver) of the existing GPUs and instances.

        An instance ends with a report of its GPU without it: the GPU was cut anew. A GPU without samples keeps its
        instances: its exporter may be down.
        """
        known, now = self.entities, set(self._present.tolist())
        for column in np.flatnonzero(self._there).tolist():
            entity = known.ids[column]
            model = known.models.get(entity.partition("/")[0], "")
            yield entity, known.profile[column], known.node[column], column in now, model

    def owned(self) -> Owned:
        """Samples of the last round with a pod label.

        If a target has samples with `exported_pod`, its `pod` is the exporter's pod, and does not count.
        """
        renamed = self._renamed
        owner = [
            exported if renamed and target in renamed else plain
            for (exported, plain), target in zip(self._owner, self._target, strict=True)
        ]
        with_pod = [k for k, row in enumerate(self._rows) if owner[row][1]]
        rows = self._rows[with_pod]
        values = self._cleaned[with_pod]
        fields = self._fields[rows]
        ids, columns = self.entities.ids, self._columns
        return Owned(
            tuple(ids[columns[row]] for row in rows),
            tuple(owner[row] for row in rows),
            np.where(fields == _FIELD_ROW[203], values, np.nan),
            np.where(fields == _FIELD_ROW[252], values, np.nan),
        )

    # --- one line ------------------------------------------------------------------------------

    def _learn(self, line: str, head: str, tail: str, node: str) -> tuple[int, str]:
        """Row and number of a line with a new head. Rows below zero are ignored."""
        bare = line.strip()
        if not bare or bare.startswith("#"):
            return _IGNORED, ""
        parts = split_line(line)
        if parts is None:
            return _MALFORMED, ""
        name, labels, number = parts
        if not _is_plain(labels):
            return _MALFORMED, ""
        if number == tail.strip():  # no timestamp: the head will recur
            row = self._heads[head] = self._new_row(name, labels, node)
            return row, number
        # the key must differ from any possible head of a line
        key = f"\x00{name}\x00{sorted(labels.items())}"
        row_or_none = self._heads.get(key)
        row = self._new_row(name, labels, node) if row_or_none is None else row_or_none
        self._heads[key] = row
        return row, number

    def _new_row(self, name: str, labels: dict[str, str], node: str) -> int:
        counted = _counted_xid(name, labels)
        field = dcgm.FIELDS[230] if counted else dcgm.BY_NAME.get(name)
        uuid = labels.get("UUID") or labels.get("uuid")
        if field is None or not uuid or any(label in labels for label in _LINK_LABELS):
            return _IGNORED
        if counted:
            self._xid[len(self._field)] = counted
        node = node or next((labels[label] for label in NODE_LABELS if labels.get(label)), "")
        gi_id, model = labels.get("GPU_I_ID", ""), labels.get("modelName", "")
        if model:
            self.entities.models[uuid] = model[:_LONGEST_ID]
        if not gi_id:
            column = self.entities.board(uuid, node)
        else:
            column = self.entities.instance(uuid, gi_id, labels.get("GPU_I_PROFILE", ""), model, node)
            if field.id == 203:
                return _IGNORED  # the board's value: unrelated to the instance, and blank under MIG
            if field.level is dcgm.Level.BOARD:
                column = self.entities.board(uuid, node)
        self._field.append(_FIELD_ROW[field.id])
        self._entity.append(column)
        plain = (
            labels.get("namespace") or labels.get("pod_namespace", ""),
            labels.get("pod") or labels.get("pod_name", ""),
            labels.get("container") or labels.get("container_name", ""),
        )
        exported = tuple(labels.get(f"exported_{name}", "") for name in ("namespace", "pod", "container"))
        if exported[1] and not exported[0]:  # only labels that the target has too are renamed
            exported = (plain[0], exported[1], exported[2] or plain[2])
        self._owner.append(((exported[0], exported[1], exported[2]), plain))
        target = (labels.get("job", ""), labels.get("instance") or node)
        self._target.append(target)
        if exported[1]:
            self._renamed.add(target)
        return len(self._field) - 1

    # --- one round -----------------------------------------------------------------------------

    def _frame(
        self,
        rows: NDArray[np.intp],
        written: list[str],
        malformed: dict[int, tuple[int, str]],
        lines: NDArray[np.intp],
    ) -> Frame:
        self._refresh()
        self._used[rows] = self._round
        numbers = _numbers(written)
        fields, columns = self._fields[rows], self._columns[rows]
        cleaned, faults = np.full(len(rows), np.nan), np.zeros(len(rows), np.int8)
        for field_row, field in enumerate(dcgm.FIELDS.values()):
            of_field = np.flatnonzero(fields == field_row)
            cleaned[of_field], faults[of_field] = dcgm.clean(field, numbers[of_field])
        for k in np.flatnonzero(np.isin(rows, list(self._xid))).tolist() if self._xid else ():
            cleaned[k] = self._xid[int(rows[k])] if numbers[k] > 0 else np.nan
            faults[k] = dcgm.Fault.OK
        size = len(self.entities.ids)
        twice = _contradicted(rows, numbers, lines)
        if len(twice):
            pairs = fields * size + columns
            unknown = np.isin(pairs, pairs[twice])
            cleaned[unknown], faults[unknown] = np.nan, dcgm.Fault.TWICE
        table = np.full((len(dcgm.FIELDS), size), np.nan)
        np.fmax.at(table, (fields, columns), cleaned)
        _gravest(table, fields, columns, cleaned)
        present = np.zeros(size, bool)
        present[columns] = True
        parents = np.array(self.entities.parent, np.intp)
        present[parents[present & (parents >= 0)]] = True
        there = np.zeros(size, bool)
        there[: len(self._there)] = self._there
        self._there = present | (there & ~((parents >= 0) & present[parents]))
        fields_of = {number: table[row] for number, row in _FIELD_ROW.items()}
        dead = dead_counters(fields_of, self.entities.node) & present
        table[np.ix_(_PROFILED, np.flatnonzero(dead))] = np.nan
        values, quality, extras = _signals(table)
        fill_boards(values, quality, self.entities, present)
        kept = np.flatnonzero(present)
        if not np.array_equal(kept, self._present):
            self._present = kept
            self._ids = np.array([self.entities.ids[column] for column in kept], dtype=object)
        self._rows, self._cleaned = rows, cleaned
        recut, self.entities.recut = frozenset(self.entities.recut), set()
        said = self._faults(fields, columns, faults, table, written)
        for column in np.flatnonzero(dead).tolist():
            said[self.entities.ids[column], dcgm.FIELDS[1002].names[0], dcgm.Fault.CONTRADICTED] = ""
        return Frame(
            self._ids,
            tuple(self.entities.node[column] for column in kept),
            values[:, kept],
            quality[kept],
            {name: column[kept] for name, column in extras.items()},
            tuple(said),
            {key: text for key, text in said.items() if text},
            malformed,
            lines.astype(np.int32),
            recut,
        )

    def _faults(
        self,
        fields: NDArray[np.intp],
        columns: NDArray[np.intp],
        faults: NDArray[np.int8],
        table: F64,
        written: list[str],
    ) -> dict[Refused, str]:
        """Refused numbers that no other sample replaces, with their first text: "" where it says nothing."""
        known = list(dcgm.FIELDS.values())
        bad = np.flatnonzero((faults != dcgm.Fault.OK) & np.isnan(table[fields, columns]))
        found: dict[Refused, str] = {}
        for k in bad.tolist():
            fault = dcgm.Fault(int(faults[k]))
            plain = fault is dcgm.Fault.BLANK or written[k].strip().lower() == "nan"
            key = (self.entities.ids[columns[k]], known[fields[k]].names[0], fault)
            found.setdefault(key, "" if plain else shown(written[k].strip()))
        return found

    def _refresh(self) -> None:
        """Columns of the row table as arrays, after new lines were learned."""
        if len(self._field) != len(self._fields):
            more = len(self._field) - len(self._used)
            self._fields = np.array(self._field, np.intp)
            self._columns = np.array(self._entity, np.intp)
            self._used = np.concatenate([self._used, np.zeros(more, np.int64)])

    def _purge(self) -> None:
        """Each time the table has doubled: forget heads that did not occur in the later half of the interval."""
        round_then, known_then = self._purged
        if len(self._heads) <= max(2 * known_then, _FEW_ROWS):
            return
        live = np.flatnonzero(self._used > (round_then + self._round) // 2)
        renumbered = {int(old): new for new, old in enumerate(live)}
        self._heads = {h: renumbered[row] for h, row in self._heads.items() if row in renumbered}
        self._rows = np.array([renumbered[int(row)] for row in self._rows], np.intp)
        self._xid = {renumbered[row]: code for row, code in self._xid.items() if row in renumbered}
        self._field = [self._field[row] for row in live]
        self._entity = [self._entity[row] for row in live]
        self._owner = [self._owner[row] for row in live]
        self._target = [self._target[row] for row in live]
        self._used = self._used[live]
        self._fields, self._columns = self._fields[live], self._columns[live]
        self._purged = (self._round, len(self._heads))


def _counted_xid(name: str, labels: dict[str, str]) -> float:
    """The code that a series counts; 0 for any other series, and for one that counts none."""
    code = labels.get("xid", "") if name in dcgm.XID_COUNTS else ""
    return float(code) if code.isascii() and code.isdigit() and float(code) <= dcgm.FIELDS[230].highest else 0.0


def _is_plain(labels: dict[str, str]) -> bool:
    """Whether the labels that name the entity may stand in ids: short, without control characters."""
    named = [labels.get(name, "") for name in ("UUID", "uuid", "GPU_I_ID", "GPU_I_PROFILE")]
    return all(len(each) <= _LONGEST_ID and each.isprintable() for each in named)


def _contradicted(rows: NDArray[np.intp], numbers: F64, lines: NDArray[np.intp]) -> NDArray[np.intp]:
    """Samples of series that one text has with different values. `lines`: samples by text."""
    again = np.flatnonzero(np.bincount(rows)[rows] > 1)
    texts = np.repeat(np.arange(len(lines)), lines)
    again = again[np.lexsort((rows[again], texts[again]))]
    row, text, number = rows[again], texts[again], numbers[again]
    unlike = (number[1:] != number[:-1]) & ~(np.isnan(number[1:]) & np.isnan(number[:-1]))
    found: NDArray[np.intp] = again[1:][(row[1:] == row[:-1]) & (text[1:] == text[:-1]) & unlike]
    return found


def _gravest(table: F64, fields: NDArray[np.intp], columns: NDArray[np.intp], cleaned: F64) -> None:
    """Of several XIDs of one entity the gravest counts, not the highest. Table [fields, entities], changed in place."""
    codes = np.flatnonzero((fields == _FIELD_ROW[230]) & (cleaned > 0))
    given = cleaned[codes].astype(np.int32)
    codes = codes[np.lexsort((given, remedies(given)))]
    table[_FIELD_ROW[230], columns[codes]] = cleaned[codes]  # the last of an entity stays


def _numbers(texts: list[str]) -> F64:
    """The numbers of a round; an invalid one is NaN."""
    try:
        return np.fromiter(map(float, texts), float, len(texts))
    except ValueError:
        return np.array([number if (number := _number(text)) is not None else np.nan for text in texts])


def _signals(table: F64) -> tuple[F32, I8, dict[str, F64]]:
    """Signals, quality and extras from a table of fields. Table [fields, entities]."""
    values = np.full((len(dcgm.SIGNALS), table.shape[1]), np.nan, np.float32)
    values[0], quality = activity([(grade, table[_FIELD_ROW[number]]) for number, grade in dcgm.ACTIVITY])
    for row, signal in enumerate(dcgm.SIGNALS[1:], start=1):
        parts = [table[_FIELD_ROW[field.id]] for field in dcgm.fields_of(signal)]
        values[row] = dcgm.joined(signal, parts)
    extras = {name: table[_FIELD_ROW[dcgm.fields_of(name)[0].id]] for name in dcgm.EXTRAS}
    return values, quality, extras
