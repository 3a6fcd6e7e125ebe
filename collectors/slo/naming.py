"""The service of a series.

It is the owner of the measuring pods, if the cluster has a service of that name. Else it is the name in the servers'
labels, or the operator's name for it. A name in several namespaces stands for a service in each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from autopilot.contract.notes import shown
from collectors.promql import Series
from collectors.slo.queries import SPLIT
from collectors.slo.sources import Source

NAMED = 3
"""Services that one gap names."""


class Key(NamedTuple):
    """A source's name for a service, the namespace of its pods and their owner; "": not known."""

    given: str
    space: str
    owner: str


def key_of(source: Source, row: Series) -> Key:
    """The key of a series."""
    labels = row.metric
    given = next((labels[each] for each in source.by if labels.get(each)), "")
    return Key(given, *(labels.get(each, "") for each in SPLIT))


def by_key(source: Source, rows: Iterable[Series]) -> Mapping[Key, Sequence[Series]]:
    """Series by their keys."""
    found: dict[Key, list[Series]] = defaultdict(list)
    for row in rows:
        found[key_of(source, row)].append(row)
    return found


class Naming:
    """Our names of services."""

    def __init__(self, services: Mapping[str, str]) -> None:
        """`services`: name in a source, or NAMESPACE/NAME -> our name."""
        self.known: Callable[[], Collection[str]] = tuple  # names of the services of the cluster, NAMESPACE/NAME
        self._services, self._there = dict(services), frozenset[str]()
        self._spaces: dict[str, set[str]] = {}  # by the name that sources use: the namespaces that have it

    def learn(self, keys: Iterable[Key]) -> None:
        """Take in all keys of one question, and the services of the cluster now."""
        self._there, self._spaces = frozenset(self.known()), defaultdict(set)
        for key in keys:
            self._spaces[key.given] |= {key.space} - {""}

    def name(self, key: Key) -> str:
        """Our name; "" if the source gives none."""
        of_owner, named = f"{key.space}/{key.owner}", f"{key.space}/{key.given}"
        if not key.given or of_owner in self._there:
            return of_owner if key.given else ""
        if key.space and named in self._services:
            return self._services[named]
        alone, ours = len(self._spaces.get(key.given, ())) < 2, self._services.get(key.given, "")
        if ours and (alone or ours.partition("/")[0] == key.space):
            return ours
        return key.given if alone or not key.space else named

    def unjoined(self, measured: Collection[str]) -> str:
        """Services of the cluster without a measurement, and measured names without a service; "" for neither."""
        silent, strange = sorted(self._there - {*measured}), sorted({*measured} - self._there)
        if self._there and strange:
            near = f"; services of the cluster without a measurement: {_some(silent)}" if silent else ""
            return f"{_some(strange)}: no service of the cluster{near}; name it in collectors.slo.services"
        return f"no source measures {_some(silent)}" if silent else ""


def _some(names: Sequence[str]) -> str:
    """A few names and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown(each)[1:-1] for each in names[:NAMED]) + more
