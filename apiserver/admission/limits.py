"""LimitRange: defaults for the resources of containers, and bounds on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from apiserver.admission.base import Attributes
from apiserver.errors import forbidden
from apiserver.kinds.base import State
from apiserver.quantity import parse

Obj = dict[str, Any]
RANGES = "limitranges"
MARK = "kubernetes.io/limit-ranger"


class LimitRanger:
    """Applies the limit ranges of a namespace to its new pods."""

    name = "LimitRanger"

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Fill the requests and limits missing from a container, and note them in an annotation."""
        if not attributes.concerns("pods", "CREATE"):
            return
        marks = []
        for item in _items(server, attributes.namespace, "Container"):
            for container in attributes.obj["spec"].get("containers") or ():
                marks += list(_filled(container, item))
        if marks:
            annotations = attributes.obj["metadata"].setdefault("annotations", {})
            annotations[MARK] = f"LimitRanger plugin set: {'; '.join(marks)}"

    def validate(self, attributes: Attributes, server: State) -> None:
        """Refuse a pod outside the bounds. Raises StatusError 403."""
        if not attributes.concerns("pods", "CREATE"):
            return
        containers = attributes.obj["spec"].get("containers") or []
        errors = []
        for kind, wholes in (
            ("Container", [each.get("resources") or {} for each in containers]),
            ("Pod", [_total(containers)]),
        ):
            for item in _items(server, attributes.namespace, kind):
                for whole in wholes:
                    errors += list(_outside(item, whole, kind))
        if errors:
            why = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
            raise forbidden(attributes.kind.named(attributes.name), why)


def _items(server: State, namespace: str, kind: str) -> Iterator[Obj]:
    for found in server.store.objects(RANGES, namespace):
        for item in found["spec"].get("limits") or ():
            if item.get("type") == kind:
                yield item


def _filled(container: Obj, item: Mapping[str, Any]) -> Iterator[str]:
    resources = container.setdefault("resources", {})
    for field, defaults in (("requests", item.get("defaultRequest") or {}), ("limits", item.get("default") or {})):
        added = []
        for name in sorted(defaults):
            held = resources.setdefault(field, {})
            if name not in held:
                held[name] = defaults[name]
                added.append(name)
        if added:
            yield f"{', '.join(added)} {field.removesuffix('s')} for container {container['name']}"


def _outside(item: Mapping[str, Any], resources: Mapping[str, Any], kind: str) -> Iterator[str]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name, bound in sorted((item.get("min") or {}).items()):
        given = requests.get(name)
        if given is None:
            yield f"minimum {name} usage per {kind} is {bound}.  No request is specified"
        elif parse(given) < parse(bound):
            yield f"minimum {name} usage per {kind} is {bound}, but request is {given}"
    for name, bound in sorted((item.get("max") or {}).items()):
        given = limits.get(name)
        if given is None:
            yield f"maximum {name} usage per {kind} is {bound}.  No limit is specified"
        elif parse(given) > parse(bound):
            yield f"maximum {name} usage per {kind} is {bound}, but limit is {given}"
    for name, ratio in sorted((item.get("maxLimitRequestRatio") or {}).items()):
        if name in requests and name in limits and parse(limits[name]) > parse(requests[name]) * parse(ratio):
            shown = float(parse(limits[name]) / parse(requests[name]))
            yield f"{name} max limit to request ratio per {kind} is {ratio}, but provided ratio is {shown:f}"


def _total(containers: list[Obj]) -> Obj:
    found: dict[str, dict[str, Fraction]] = {"requests": {}, "limits": {}}
    for container in containers:
        for field, sums in found.items():
            for name, text in ((container.get("resources") or {}).get(field) or {}).items():
                sums[name] = sums.get(name, Fraction(0)) + parse(text)
    return {field: {name: str(float(amount)) for name, amount in sums.items()} for field, sums in found.items()}
