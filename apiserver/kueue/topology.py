"""Topology-aware placement: the domains (block, rack, host) for the pods of a pod set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from apiserver.kueue.matching import untolerated, wants_node
from apiserver.pod_requests import pod_requests
from apiserver.quantity import parse

Obj = dict[str, Any]
Amounts = dict[str, Fraction]
Values = tuple[str, ...]
HOST = "kubernetes.io/hostname"
PODS = "pods"


@dataclass(slots=True)
class Domain:
    """A place at one level, with the places below it; a leaf has room."""

    values: Values
    below: dict[Values, Domain] = field(default_factory=dict)
    free: list[tuple[Obj, Amounts]] = field(default_factory=list)  # nodes of a leaf, and what is free there
    fits: int = 0


class Tree:
    """The nodes of a flavor as domains of a topology, with their free amounts."""

    def __init__(self, name: str, levels: list[str], flavor: Obj) -> None:
        self.name = name
        self.levels = levels
        self.hosts = levels[-1:] == [HOST]  # taints, selectors and affinity count on single nodes alone
        self.labels = flavor.get("nodeLabels") or {}
        self.tolerations = flavor.get("tolerations") or []
        self.roots: dict[Values, Domain] = {}
        self.leaves: dict[Values, Domain] = {}
        self.excluded: Counter[str] = Counter()  # leaves without room for a single pod, by the reason

    def add_node(self, node: Obj, free: Amounts) -> None:
        """A node, if it belongs to the flavor and is ready."""
        labels = node["metadata"].get("labels") or {}
        if any(labels.get(key) != value for key, value in self.labels.items()) or node["spec"].get("unschedulable"):
            return
        if not all(level in labels for level in self.levels) or not _ready(node):
            return
        values = tuple(labels[level] for level in self.levels)
        places = self.roots
        domain = Domain(())
        for depth in range(1, len(values) + 1):
            domain = places.setdefault(values[:depth], Domain(values[:depth]))
            places = domain.below
        domain.free.append((node, free))
        self.leaves[values] = domain

    def take(self, values: Values, single: Amounts, count: int) -> None:
        """Pods of an admitted workload use room in a domain (its values at the stated levels, the lowest last)."""
        for leaf in self.leaves.values():
            if leaf.values[-len(values) :] == values:
                for _, free in leaf.free[:1]:
                    for name, value in single.items():
                        free[name] = free.get(name, Fraction(0)) - value * count
                    free[PODS] = free.get(PODS, Fraction(0)) - count
                return

    def place(self, pod_set: Obj, count: int) -> tuple[Obj | None, str]:
        """The assignment of `count` pods as status.admission states it; or None, and the reason."""
        spec = pod_set["template"]["spec"]
        self.excluded.clear()
        self._count_fits(self.roots.values(), spec, pod_requests(spec))
        asked = pod_set.get("topologyRequest") or {}
        level = asked.get("required") or asked.get("preferred") or self.levels[-1]
        if level not in self.levels:
            return None, f"no requested topology level: {level}"
        if not self.leaves:
            return None, f"no topology domains at level: {level}"
        chosen = self._choose(
            self.levels.index(level),
            count,
            required=bool(asked.get("required")),
            free_choice=not (asked.get("required") or asked.get("preferred")),
        )
        if chosen is None:
            most = self._most(self.levels.index(level), required=bool(asked.get("required")))
            return None, self._not_fit(most, count)
        return self._entry(self._descend(chosen, count)), ""

    def _not_fit(self, most: int, count: int) -> str:
        fit = f"allows to fit only {most} out of" if most else "doesn't allow to fit any of"
        text = f'topology "{self.name}" {fit} {count} pod(s)'
        if self.excluded:
            reasons = ", ".join(sorted(f"{reason}: {number}" for reason, number in self.excluded.items()))
            text += f". Total nodes: {len(self.leaves)}; excluded: {reasons}"
        return text

    def _leaf_fits(self, leaf: Domain, spec: Obj, single: Amounts) -> int:
        reason = _refusal(leaf.free[0][0], spec, self.tolerations) if self.hosts else ""
        if reason:
            self.excluded[reason] += 1
            return 0
        free: Amounts = {}
        for _, amounts in leaf.free:
            for name, value in amounts.items():
                free[name] = free.get(name, Fraction(0)) + value
        asked = [(name, value) for name, value in (single | {PODS: Fraction(1)}).items() if value]
        count, limiting = min((max(0, int(free.get(name, Fraction(0)) // value)), name) for name, value in asked)
        if not count:
            self.excluded[f'resource "{limiting}"'] += 1
        return count

    def _count_fits(self, domains: Iterable[Domain], spec: Obj, single: Amounts) -> int:
        total = 0
        for domain in domains:
            if domain.below:
                domain.fits = self._count_fits(domain.below.values(), spec, single)
            else:
                domain.fits = self._leaf_fits(domain, spec, single)
            total += domain.fits
        return total

    def _at(self, depth: int) -> list[Domain]:
        found = list(self.roots.values())
        for _ in range(depth):
            found = [child for domain in found for child in domain.below.values()]
        return found

    def _most(self, depth: int, *, required: bool) -> int:
        fits = [domain.fits for domain in self._at(depth if required else 0)]
        return max(fits, default=0) if required else sum(fits)

    def _choose(self, depth: int, count: int, *, required: bool, free_choice: bool) -> list[Domain] | None:
        if free_choice:
            everywhere = self._at(len(self.levels) - 1)
            return _fewest(everywhere, count) if sum(each.fits for each in everywhere) >= count else None
        for at in (depth,) if required else range(depth, -1, -1):
            single = [domain for domain in self._at(at) if domain.fits >= count]
            if single:
                return [min(single, key=lambda domain: (domain.fits, domain.values))]
        if required:
            return None
        top = self._at(0)
        return _fewest(top, count) if sum(domain.fits for domain in top) >= count else None

    def _descend(self, domains: list[Domain], count: int) -> list[tuple[Domain, int]]:
        while domains[0].below:
            domains = _fewest([child for domain in domains for child in domain.below.values()], count)
        found = []
        for domain in domains:
            taken = min(domain.fits, count)
            found.append((domain, taken))
            count -= taken
        return sorted(found, key=lambda each: each[0].values)

    def _entry(self, placed: list[tuple[Domain, int]]) -> Obj:
        levels = [HOST] if self.hosts else self.levels
        rows = [domain.values[-1:] if self.hosts else domain.values for domain, _ in placed]
        counts = [count for _, count in placed]
        entry: Obj = {
            "domainCount": len(rows),
            "podCounts": {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts},
            "valuesPerLevel": [_encoded([row[number] for row in rows]) for number in range(len(levels))],
        }
        return {"levels": levels, "slices": [entry]}


def _ready(node: Obj) -> bool:
    found = (node.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def _refusal(node: Obj, spec: Obj, tolerations: list[Obj]) -> str:
    """The reason of a node to take no pod of a spec, even if empty; "" if it takes some."""
    taint = untolerated(node["spec"].get("taints") or [], [*(spec.get("tolerations") or []), *tolerations])
    if taint is not None:
        value = f"={taint['value']}" if taint.get("value") else ""
        return f'taint "{taint["key"]}{value}:{taint["effect"]}"'
    labels = node["metadata"].get("labels") or {}
    if not wants_node({"nodeSelector": spec.get("nodeSelector")}, labels):
        return "nodeSelector"
    return "" if wants_node({"affinity": spec.get("affinity")}, labels) else "affinity"


def _fewest(domains: list[Domain], count: int) -> list[Domain]:
    """The fewest domains for `count` pods; the last one is the tightest sufficient one."""
    ordered = sorted((domain for domain in domains if domain.fits), key=lambda domain: (-domain.fits, domain.values))
    found: list[Domain] = []
    for number, domain in enumerate(ordered):
        if domain.fits >= count:
            enough = [each for each in ordered[number:] if each.fits >= count]
            found.append(min(enough, key=lambda each: (each.fits, each.values)))
            return found
        found.append(domain)
        count -= domain.fits
    return found


def _encoded(values: list[str]) -> Obj:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _shared_start(values)
    rest = [value[len(prefix) :] for value in values]
    suffix = _shared_start([value[::-1] for value in rest])[::-1]
    roots = [value[: len(value) - len(suffix)] for value in rest]
    found: Obj = {"roots": roots}
    if prefix:
        found = {"prefix": prefix, **found}
    if suffix:
        found["suffix"] = suffix
    return {"individual": found}


def _shared_start(values: list[str]) -> str:
    first, last = min(values), max(values)
    number = next((at for at, letter in enumerate(first) if not last.startswith(letter, at)), len(first))
    return first[:number]


def domains_of(assignment: Obj) -> list[tuple[Values, int]]:
    """The domains of a stored assignment, each with its number of pods."""
    found: list[tuple[Values, int]] = []
    for part in assignment["slices"]:
        size = part["domainCount"]
        columns = [_decoded(each, size) for each in part["valuesPerLevel"]]
        counts = part["podCounts"].get("individual") or [part["podCounts"].get("universal", 0)] * size
        found += [(tuple(column[number] for column in columns), counts[number]) for number in range(size)]
    return found


def _decoded(values: Obj, size: int) -> list[str]:
    if "universal" in values:
        return [values["universal"]] * size
    each = values["individual"]
    return [each.get("prefix", "") + root + each.get("suffix", "") for root in each["roots"]]


def free_on(nodes: Iterable[Obj], pods: Iterable[Obj]) -> list[tuple[Obj, Amounts]]:
    """Nodes with the amounts left free by `pods`."""
    used: dict[str, Amounts] = {}
    for pod in pods:
        name = pod["spec"].get("nodeName")
        if not name or (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        sums = used.setdefault(name, {})
        for resource, value in (pod_requests(pod["spec"]) | {PODS: Fraction(1)}).items():
            sums[resource] = sums.get(resource, Fraction(0)) + value
    found = []
    for node in nodes:
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        taken = used.get(node["metadata"]["name"], {})
        free = {name: parse(text) - taken.get(name, Fraction(0)) for name, text in allocatable.items()}
        found.append((node, free))
    return found
