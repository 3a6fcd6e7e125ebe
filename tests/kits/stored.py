"""A Prometheus in virtual time, for the collector that reads GPU telemetry from one.

It scrapes texts, renames labels as Prometheus does, and answers the forms of query that `collectors.promql` builds, no
others. `tests/e2e/test_prometheus_collector.py` asks a real one the same queries.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec

from collectors.exposition import parse
from collectors.prometheus import PrometheusCollector
from collectors.promql import Answered, Labels, Row

Found = list[tuple[dict[str, str], list[tuple[float, float]]]]
Vector = list[tuple[dict[str, str], float]]
LOOK_BACK_S = 300.0
KEPT_S = 2000.0
"""Samples of a series that goes on are kept for longer than the longest window."""

_AGGREGATE = re.compile(r'(sum|max|count_values) by \(([^)]*)\) \((?:"(\w+)", )?(.*)\)', re.DOTALL)
_OVER = re.compile(r"(sum|max|avg|count|last)_over_time\((.*)\[(\d+)s\]\)( unless on \(([^)]*)\) (.*))?", re.DOTALL)
_SELECTOR = re.compile(r"(\w*)\{(.*)\}", re.DOTALL)
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class Scraped:
    """One target: its own labels, its text at a time, and whether the labels of the text win. "": it is down."""

    text: Callable[[float], str]
    labels: Mapping[str, str] = field(default_factory=dict)
    honor_labels: bool = False

    def samples(self, at_s: float) -> Iterable[tuple[str, dict[str, str], float]]:
        """What one scrape stores."""
        text = self.text(at_s)
        yield "up", dict(self.labels), float(bool(text))
        for name, given, value in parse(text):
            labels = dict(self.labels)
            for label, known in given.items():
                taken = label in labels and not self.honor_labels
                labels[f"exported_{label}" if taken else label] = known
            yield name, {label: known for label, known in labels.items() if known}, value


class StoredCollector(PrometheusCollector):
    """The collector on targets that are scraped every `scrape_s` from `start_s` on.

    `lost(labels)`: series of a store that does not answer, while `warning` is set.
    """

    def __init__(self, targets: Sequence[Scraped], start_s: float, *, scrape_s: float = 15.0, **more: Any) -> None:
        super().__init__("http://prometheus", **more)
        self.targets, self._start_s, self._scrape_s = targets, start_s, scrape_s
        self._stored: dict[str, dict[tuple[tuple[str, str], ...], list[tuple[float, float]]]] = {}
        self._known: dict[str, tuple[int, Found]] = {}  # by selector: series there were, and those that match
        self._next_s = start_s
        self.warning = ""
        self.lost: Callable[[Mapping[str, str]], bool] = lambda _: True
        self.asked: list[str] = []

    def _scrape(self, now_s: float) -> None:
        while self._next_s <= now_s:
            for target in self.targets:
                for name, labels, value in target.samples(self._next_s):
                    kept = self._stored.setdefault(name, {}).setdefault(tuple(sorted(labels.items())), [])
                    kept.append((self._next_s, value))
                    while kept[0][0] < self._next_s - KEPT_S:
                        kept.pop(0)
            self._next_s += self._scrape_s

    def _values(self, label: str, match: str, from_s: float, to_s: float) -> tuple[list[str], str]:
        self._scrape(to_s)
        found = {labels.get(label, "") for labels, _ in self._select(match, from_s, to_s)}
        return sorted(found - {""}), self.warning

    def _fetch(self, query: str, now_s: float) -> Answered:
        self._scrape(now_s)
        self.asked.append(query)
        rows = [
            Row(msgspec.convert(labels, Labels), (now_s, repr(value))) for labels, value in self._answer(query, now_s)
        ]
        return Answered(rows, [self.warning] if self.warning else [], self.warning)

    def _select(self, selector: str, from_s: float, to_s: float) -> Found:
        """Series with samples after `from_s`, up to `to_s`."""
        size = sum(map(len, self._stored.values()))
        if self._known.get(selector, (0, []))[0] != size:
            self._known[selector] = size, list(self._series(selector))
        found = []
        for labels, samples in self._known[selector][1]:
            inside = samples[bisect_right(samples, (from_s, inf)) : bisect_right(samples, (to_s, inf))]
            if inside and not (self.warning and self.lost(labels)):
                found.append((labels, inside))
        return found

    def _series(self, selector: str) -> Iterator[tuple[dict[str, str], list[tuple[float, float]]]]:
        parts = _SELECTOR.fullmatch(selector.strip())
        assert parts, selector
        tests = [(label, how, re.sub(r"\\(.)", r"\1", text)) for label, how, text in _MATCHER.findall(parts[2])]
        for name in [parts[1]] if parts[1] else list(self._stored):
            for key, samples in self._stored.get(name, {}).items():
                labels = {**dict(key), "__name__": name}
                if all(_matches(labels.get(label, ""), how, text) for label, how, text in tests):
                    yield labels, samples

    def _answer(self, query: str, now_s: float) -> Vector:
        if " / sum by" in query:
            above, _, below = query.partition(" / sum by")
            counts = {_key(labels): value for labels, value in self._answer("sum by" + below, now_s)}
            return [(labels, value / counts[_key(labels)]) for labels, value in self._answer(above, now_s)]
        if query.endswith(" == 0"):
            return [each for each in self._answer(query.removesuffix(" == 0"), now_s) if each[1] == 0]
        if parts := _AGGREGATE.fullmatch(query):
            return _aggregated(parts[1], parts[2].split(", "), parts[3], self._answer(parts[4], now_s))
        if query.startswith("timestamp("):
            return [(labels, samples[-1][0]) for labels, samples in self._now(query[10:-1], now_s)]
        if parts := _OVER.fullmatch(query):
            vector = [
                (labels, _over(parts[1], [value for _, value in samples]))
                for labels, samples in self._select(parts[2], now_s - float(parts[3]), now_s)
            ]
            if not parts[4]:
                return vector
            on = parts[5].split(", ")
            gone = {tuple(labels.get(label, "") for label in on) for labels, _ in self._answer(parts[6], now_s)}
            return [each for each in vector if tuple(each[0].get(label, "") for label in on) not in gone]
        return [(labels, samples[-1][1]) for labels, samples in self._now(query, now_s)]

    def _now(self, selector: str, now_s: float) -> Found:
        """Series that are not stale: the last scrape has them."""
        last_s = self._next_s - self._scrape_s
        found = self._select(selector, now_s - LOOK_BACK_S, now_s)
        return [(labels, samples) for labels, samples in found if samples[-1][0] == last_s]


def _aggregated(how: str, by: Sequence[str], label: str | None, vector: Vector) -> Vector:
    groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for labels, value in vector:
        groups[tuple(labels.get(name, "") for name in by)].append(value)
    found: Vector = []
    for key, values in groups.items():
        named = {name: text for name, text in zip(by, key, strict=True) if text}
        if how == "count_values":
            found += [({**named, str(label): f"{each:g}"}, float(values.count(each))) for each in sorted(set(values))]
        else:
            found.append((named, sum(values) if how == "sum" else max(values)))
    return found


def _over(how: str, values: Sequence[float]) -> float:
    ways = {"sum": sum(values), "max": max(values), "avg": sum(values) / len(values), "count": float(len(values))}
    return ways.get(how, values[-1])


def _matches(value: str, how: str, text: str) -> bool:
    if how == "=~":
        return re.fullmatch(text, value) is not None
    return (value == text) is (how == "=")


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
