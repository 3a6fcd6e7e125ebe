"""Changes of a cluster for what-if questions: `queue.vision.guarantee=x2`, `pool.h100.nodes=+4`, `nodes=+4`.

A value is a number, text, true or false. `+4` and `-4` change the present number, `x2` multiplies it. The changed
cluster is checked by the same rules as a cluster file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from autopilot.core.model.errors import InputError, nearest, unknown_name
from simulator.specs.cluster_document import cluster_document
from simulator.specs.clusterfile import ClusterSpec, read_cluster
from simulator.specs.fields import Fields

QUEUE_FIELDS = (
    "guarantee",
    "limit",
    "weight",
    "priority",
    "order",
    "strict",
    "borrow_limit",
    "lend_limit",
    "within_queue",
    "reclaim",
    "while_borrowing",
    "while_borrowing_priority",
    "guarantee_kept",
)
POOL_FIELDS = ("nodes", "gpus_per_node", "gpu_model", "cpus", "memory_mib", "spot", "price_weight", "absent")
BY_MODEL = ("guarantee", "limit", "weight")
KINDS = {"queue": ("queues", QUEUE_FIELDS), "pool": ("pools", POOL_FIELDS)}
WRITE = "write for example queue.NAME.guarantee=32, pool.NAME.nodes=+4 or nodes=+4"

_RELATIVE = re.compile(r"([+x-])([0-9]+(?:\.[0-9]+)?)")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_WORDS = {"true": True, "false": False}


def changed(spec: ClusterSpec, changes: Sequence[str]) -> ClusterSpec:
    """The cluster after all changes. Raises `InputError` with the change, its fault, and the existing names."""
    if not changes:
        return spec
    document = cluster_document(spec)
    models = tuple(spec.gpus_by_model)
    for change in changes:
        _apply(document, change, models)
    source = f"{spec.source} with {', '.join(changes)}"
    return read_cluster(Fields(document, source, ""), source)


def _apply(document: dict[str, Any], change: str, models: Sequence[str]) -> None:
    """Change one field of the document in place."""
    path, equals, value = (part.strip() for part in change.partition("="))
    if not equals or not path or not value:
        raise InputError(f"--set: {change!r}: {WRITE}")
    kind, _, rest = path.partition(".")
    if kind == "nodes":
        kind, rest = "pool", f"{rest or _only(document, change)}.nodes"
    if kind not in KINDS:
        near = nearest(kind, (*KINDS, "nodes"))
        raise InputError(f"--set: {change!r}: {kind!r} cannot be changed; {near + ' ' if near else ''}{WRITE}")
    place, known = KINDS[kind]
    entry, field = _entry(document.get(place, []), kind, rest, change)
    field, _, model = field.partition(".")
    if field not in known or (model and field not in BY_MODEL):
        raise InputError(
            f"--set: {change!r}: {field + ('.' + model if model else '')!r} is no field that can be changed; "
            f"{unknown_name(field, known)}"
        )
    if field in BY_MODEL:
        _set_by_model(entry, field, model, value, change, models)
    else:
        entry[field] = _value(entry.get(field), value, change)


def _only(document: dict[str, Any], change: str) -> str:
    """The name of the only pool."""
    pools = [str(pool["name"]) for pool in document["pools"]]
    if len(pools) > 1:
        raise InputError(
            f"--set: {change!r}: the cluster has several pools; write nodes.POOL=..., with one of {', '.join(pools)}"
        )
    return pools[0]


def _entry(entries: Sequence[dict[str, Any]], kind: str, rest: str, change: str) -> tuple[dict[str, Any], str]:
    """The queue or pool named by the start of `rest` (names may contain dots), and the path in it."""
    by_name = {str(entry["name"]): entry for entry in entries}
    for name in sorted(by_name, key=len, reverse=True):
        if rest.startswith(f"{name}."):
            return by_name[name], rest[len(name) + 1 :]
    if rest in by_name:
        raise InputError(f"--set: {change!r}: names no field of {kind} {rest!r}; {WRITE}")
    raise InputError(f"--set: {change!r}: no such {kind}; {unknown_name(rest.partition('.')[0], by_name)}")


def _set_by_model(
    entry: dict[str, Any], field: str, model: str, value: str, change: str, models: Sequence[str]
) -> None:
    """Change a guarantee, limit or weight: of `model`, or of all models in the entry or the cluster."""
    stated = entry.get(field)
    if field != "guarantee" and not model and not isinstance(stated, dict):
        entry[field] = _value(stated, value, change)
        return
    table = dict(stated) if isinstance(stated, dict) else {} if stated is None else {"all": stated}
    targets = [model] if model else list(table) or list(models)
    if len(targets) > 1 and not value.startswith("x"):
        raise InputError(
            f"--set: {change!r}: names no GPU model; write {change.partition('=')[0].strip()}.MODEL=..., with one of "
            f"{', '.join(targets)}"
        )
    for name in targets:
        table[name] = _value(table.get(name, 0 if field == "guarantee" else None), value, change)
    entry[field] = table


def _value(before: Any, value: str, change: str) -> Any:
    """The new value; a relative one needs a number before it."""
    relative = _RELATIVE.fullmatch(value)
    if relative is None:
        if _NUMBER.fullmatch(value):
            return _whole(float(value))
        return _WORDS.get(value, value)
    if isinstance(before, bool) or not isinstance(before, int | float):
        raise InputError(f"--set: {change!r}: there is no number to change; write the new value without {relative[1]}")
    amount = float(relative[2])
    return _whole(before * amount if relative[1] == "x" else before + (amount if relative[1] == "+" else -amount))


def _whole(number: float) -> int | float:
    """An int for a whole number: fields of counts refuse 32.0."""
    return int(number) if number == int(number) else number
