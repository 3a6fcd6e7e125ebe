"""The `queues` of a cluster file: who is guaranteed what, who may borrow how much, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autopilot.core.errors import InputError
from simulator.fields import Fields

ROOT = "root"
ORDERS = ("submission", "index")
MOST_QUEUES = 20_000
MOST_GPUS = 200_000 * 72


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue. `parent` is `root` at the top; `limit` is None where there is none.

    `guarantee` counts GPUs by model; `order` is None where the policy's own order holds.
    """

    name: str
    parent: str
    guarantee: Mapping[str, int]
    limit: int | None
    weight: float
    priority: int
    order: str | None


def parse_queues(root: Fields, gpus_by_model: Mapping[str, int]) -> tuple[QueueSpec, ...]:
    """The queues of a cluster file, parents before children, else in the order of the file.

    Raises `InputError` for duplicate names, unknown parents, cycles, negative figures, a weight of zero,
    a GPU model that no pool has, guarantees above the limit, the parent's guarantee or the cluster.
    """
    specs: dict[str, QueueSpec] = {}
    places: dict[str, Fields] = {}
    for fields in root.each("queues"):
        spec = _queue(fields, gpus_by_model)
        if spec.name in specs:
            raise fields.fail("name", "this name stands twice; queues need different names")
        if spec.name == ROOT:
            raise fields.fail("name", "the root is there by itself; leave it out or choose another name")
        specs[spec.name], places[spec.name] = spec, fields
        if len(specs) > MOST_QUEUES:
            raise InputError(f"{root.where('queues')}: more than {MOST_QUEUES:,} queues")
    for name, spec in specs.items():
        if spec.parent != ROOT and spec.parent not in specs:
            raise places[name].fail(
                "parent", f"no such queue; there are {', '.join([ROOT, *list(specs)[:20]])}"
            )
    ordered = _parents_first(specs, places)
    _check_guarantees(ordered, places, gpus_by_model, root)
    return ordered


def _queue(fields: Fields, gpus_by_model: Mapping[str, int]) -> QueueSpec:
    name = fields.text("name")
    limit = fields.get("limit")
    spec = QueueSpec(
        name=name,
        parent=fields.text("parent", default=ROOT),
        guarantee=_guarantee(fields, gpus_by_model),
        limit=None if limit is None else fields.whole("limit", 0, MOST_GPUS),
        weight=fields.number("weight", 0.0, 1e6, default=1.0, above=True),
        priority=fields.whole("priority", 0, 2**31 - 1, default=0),
        order=None if fields.get("order") is None else fields.text("order", allowed=ORDERS),
    )
    fields.done()
    if spec.limit is not None and sum(spec.guarantee.values()) > spec.limit:
        raise fields.fail(
            "limit", f"it is below the queue's guarantee of {sum(spec.guarantee.values()):,} GPUs"
        )
    return spec


def _guarantee(fields: Fields, gpus_by_model: Mapping[str, int]) -> dict[str, int]:
    value = fields.get("guarantee")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise fields.fail("guarantee", "write GPU models and numbers, for example {H100-80GB: 16}")
    inner = Fields(value, fields.source, f"{fields.path}.guarantee")
    for model in inner.content:
        if model not in gpus_by_model:
            raise inner.fail(
                model, f"no pool has that GPU model; there are {', '.join(sorted(gpus_by_model))}"
            )
    return {model: inner.whole(model, 0, MOST_GPUS) for model in inner.content}


def _parents_first(specs: Mapping[str, QueueSpec], places: Mapping[str, Fields]) -> tuple[QueueSpec, ...]:
    ordered: dict[str, QueueSpec] = {}
    waiting = list(specs.values())
    while waiting:
        ready = [spec for spec in waiting if spec.parent == ROOT or spec.parent in ordered]
        if not ready:
            chain = _cycle(waiting[0].name, specs)
            raise places[chain[0]].fail(
                "parent", f"the queues form a cycle: {' -> '.join([*chain, chain[0]])}"
            )
        ordered.update((spec.name, spec) for spec in ready)
        waiting = [spec for spec in waiting if spec.name not in ordered]
    return tuple(ordered.values())


def _cycle(start: str, specs: Mapping[str, QueueSpec]) -> list[str]:
    seen: list[str] = []
    name = start
    while name not in seen:
        seen.append(name)
        name = specs[name].parent
    return seen[seen.index(name) :]


def _check_guarantees(
    specs: Sequence[QueueSpec], places: Mapping[str, Fields], gpus_by_model: Mapping[str, int], root: Fields
) -> None:
    promised: dict[tuple[str, str], int] = {}
    for spec in specs:
        for model, gpus in spec.guarantee.items():
            promised[spec.parent, model] = promised.get((spec.parent, model), 0) + gpus
    by_name = {spec.name: spec for spec in specs}
    for (parent, model), gpus in promised.items():
        if parent == ROOT:
            held, what, where = gpus_by_model[model], "the cluster has", root.where("queues")
        else:
            held = by_name[parent].guarantee.get(model, 0)
            what, where = f"{parent} itself is guaranteed", places[parent].where("guarantee")
        if gpus > held:
            raise InputError(
                f"{where}: the queues under {parent} are guaranteed {gpus:,} x {model}, but {what} {held:,}; "
                "lower the children's guarantees or raise the parent's"
            )
