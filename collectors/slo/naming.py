"""The service of a series.

It is the service that the cluster has for the measuring pods, by the name of their owner. Else it is the name in the
servers' labels, or the operator's name for it. A name in several namespaces stands for a service in each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from autopilot.contract.notes import shown
from collectors.promql import Series
from collectors.slo.queries import SPLIT, owner_of
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
        self.by_pod: Callable[[], Mapping[str, str]] = dict  # NAMESPACE/POD -> one of them, beside their owners
        self._services, self._there = dict(services), frozenset[str]()
        self._owners: dict[str, set[str]] = {}  # NAMESPACE/OWNER -> the services of its pods
        self._nameless = set[str]()  # services with pods whose names tell no owner
        self._spaces: dict[str, set[str]] = {}  # by the name that sources use: the namespaces that have it

    def learn(self, keys: Iterable[Key]) -> None:
        """Take in all keys of one question, and the services of the cluster now."""
        self._there, self._spaces, self._owners = frozenset(self.known()), defaultdict(set), defaultdict(set)
        for pod, service in self.by_pod().items():
            space, _, name = pod.partition("/")
            self._owners[f"{space}/{owner_of(name)}"].add(service)
        self._nameless = {each for owner, found in self._owners.items() if owner.endswith("/") for each in found}
        for key in keys:
            self._spaces[key.given] |= {key.space} - {""}

    def name(self, key: Key) -> str:
        """Our name; "" if the source gives none."""
        named = f"{key.space}/{key.given}"
        if not key.given:
            return ""
        if of_owner := self._of_owner(key):
            return of_owner
        if key.space and named in self._services:
            return self._services[named]
        alone, ours = len(self._spaces.get(key.given, ())) < 2, self._services.get(key.given, "")
        if ours and (alone or ours.partition("/")[0] == key.space):
            return ours
        return key.given if alone or not key.space else named

    def _of(self, owner: str) -> set[str]:
        """The services of the pods of NAMESPACE/OWNER."""
        return self._owners.get(owner, set()) | ({owner} & self._there)

    def _of_owner(self, key: Key) -> str:
        """The service of the owner of some pods; "" for none, and for pods of several services."""
        owner = f"{key.space}/{key.owner}"
        services, without_hash = self._of(owner) if key.owner else set(), owner.rpartition("-")[0]
        if not services:
            return without_hash if without_hash in self._there else ""
        return min(services) if len(services) == 1 else ""

    def mixed(self) -> str:
        """Services whose pods cannot be told apart by their names; "" for none."""
        mixed = {each for owner in self._owners if len(found := self._of(owner)) > 1 for each in found} | self._nameless
        return f"names of pods do not tell apart {_some(sorted(mixed))}: their series do not count" if mixed else ""

    def unjoined(self, measured: Collection[str]) -> str:
        """Services of the cluster without a measurement, and measured names without a service; "" for neither."""
        pools = {each.partition("~")[0] for each in measured}
        silent, strange = sorted(self._there - {*measured} - pools), sorted({*measured} - self._there)
        if self._there and strange:
            near = f"; services of the cluster without a measurement: {_some(silent)}" if silent else ""
            return f"{_some(strange)}: no service of the cluster{near}; name it in collectors.slo.services"
        return f"no source measures {_some(silent)}" if silent else ""


def _some(names: Sequence[str]) -> str:
    """A few names and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown(each)[1:-1] for each in names[:NAMED]) + more
