"""The node selector of a gang after its admission, put together before anything is written.

Kueue merges the labels of flavors, the selector of the template and the updates of all checks. If two of them differ in
one key, it ends the workload for good. So the same merge is done here first, and a contradiction is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actuators.kubernetes.api import Api, Obj, Ref
from autopilot.contract.annotations import CHECK


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sources ask for different values of one node label."""

    key: str
    first: str  # asker and requested value
    second: str

    def __str__(self) -> str:
        """In words."""
        return f"{self.key}: {self.first}, but {self.second}"


@dataclass(frozen=True, slots=True)
class Merged:
    """A selector with the source of each of its keys."""

    selector: Mapping[str, str]
    source: Mapping[str, str]


def merge(parts: Iterable[tuple[str, Mapping[str, str]]]) -> Merged | Contradiction:
    """Selectors by source, put together; or the first contradiction. Equal values do not contradict."""
    selector: dict[str, str] = {}
    source: dict[str, str] = {}
    for name, labels in parts:
        for key, value in labels.items():
            if key in selector and selector[key] != value:
                return Contradiction(key, f"{source[key]} asks for {selector[key]!r}", f"{name} asks for {value!r}")
            selector.setdefault(key, value)
            source.setdefault(key, name)
    return Merged(selector, source)


def base_selectors(api: Api, workload: Obj) -> dict[str, list[tuple[str, Mapping[str, str]]]] | str:
    """By pod set: the sources of node labels beside us. A text is the reason for unknown labels.

    These are the template, the flavors of the reservation, and the updates of other checks.
    """
    admission = (workload.get("status") or {}).get("admission") or {}
    assigned = {each["name"]: each for each in admission.get("podSetAssignments") or ()}
    labels: dict[str, Mapping[str, str]] = {}
    for each in assigned.values():
        for flavor in sorted(set((each.get("flavors") or {}).values())):
            if flavor in labels:
                continue
            answer = api.read(Ref("ResourceFlavor", "", flavor))
            if not answer.ok:
                return f"the labels of flavor {flavor} cannot be read: {answer.message}"
            labels[flavor] = answer.body.get("spec", {}).get("nodeLabels") or {}
    found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for pod_set in workload["spec"].get("podSets") or ():
        name = pod_set["name"]
        template = (pod_set.get("template") or {}).get("spec") or {}
        parts: list[tuple[str, Mapping[str, str]]] = [("its template", template.get("nodeSelector") or {})]
        flavors = sorted(set((assigned.get(name, {}).get("flavors") or {}).values()))
        parts += [(f"flavor {flavor}", labels[flavor]) for flavor in flavors]
        for check in (workload.get("status") or {}).get("admissionChecks") or ():
            if check["name"] == CHECK:
                continue
            updates = [each for each in check.get("podSetUpdates") or () if each["name"] == name]
            parts += [(f"check {check['name']}", each.get("nodeSelector") or {}) for each in updates]
        found[name] = parts
    return found
