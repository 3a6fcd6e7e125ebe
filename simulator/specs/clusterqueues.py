"""The `queues` of a cluster file: guarantees, limits, borrowing, and order.

queues:
  - name: research            # required, different in each queue; a tenant uses the queue of its name
    parent: root              # the queue above it
    guarantee: {H100-80GB: 64}
    limit: 128                # hard ceiling; or {all: 128, H100-80GB: 64}, also for single GPU models
    weight: 2                 # share of idle capacity; or {all: 2, A100-80GB: 1}
    priority: 0               # among the queues of one parent, the higher is served first
    order: index              # submission | index; left out: index
    strict: false             # a gang that cannot start blocks those behind it
    guarantee_kept: strict    # strict | elastic | none; left out: like the queue above, else as the policy says
    # Under the rules of cohorts (Kueue) only:
    borrow_limit: 32          # GPUs above its guarantee that it may use; left out: no limit
    lend_limit: 16            # GPUs of its guarantee that others may use; left out: all
    within_queue: lower       # victims in the queue itself: never | lower | lower-or-newer-equal | any
    reclaim: any              # victims in queues that borrow
    while_borrowing: never    # victims while it borrows itself
    while_borrowing_priority: 0  # the highest priority of a victim then; left out: any that the setting allows

docs/cluster-file.md has the fields as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.policy.tenancy import GUARANTEES_KEPT
from autopilot.core.model.snapshot import Displace
from autopilot.core.model.units import counted
from simulator.specs.fields import Fields

ROOT = "root"
ORDERS = ("submission", "index")
MOST_QUEUES = 20_000
MOST_GPUS = 200_000 * 72
MOST_PRIORITY = 2**31 - 1
ALL_MODELS = "all"
"""In a limit or weight by GPU model: the value for all models together."""
DISPLACE = {
    "never": Displace.NEVER,
    "lower": Displace.LOWER,
    "lower-or-newer-equal": Displace.LOWER_OR_NEWER_EQUAL,
    "any": Displace.ANY,
}


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue. `parent` is `root` at the top; limits are None where there are none.

    `guarantee` counts GPUs by model; `limit` and `weight` are those of all models together, `limit_by_model` and
    `weight_by_model` those of single ones. `order` is None where the policy's own order holds. The default victims
    under cohort rules are those that Kueue recommends: lower priorities in the queue itself, any work of other queues
    that borrow, and none while it borrows itself.
    """

    name: str
    parent: str
    guarantee: Mapping[str, int]
    limit: int | None
    weight: float
    priority: int
    order: str | None
    limit_by_model: Mapping[str, int] = field(default_factory=dict)
    weight_by_model: Mapping[str, float] = field(default_factory=dict)
    strict: bool = False
    borrow_limit: int | None = None
    lend_limit: int | None = None
    within_queue: Displace = Displace.LOWER
    reclaim: Displace = Displace.ANY
    while_borrowing: Displace = Displace.NEVER
    while_borrowing_priority: int = MOST_PRIORITY
    guarantee_kept: str = ""


def parse_queues(root: Fields, gpus_by_model: Mapping[str, int]) -> tuple[QueueSpec, ...]:
    """The queues of a cluster file, parents before children, otherwise in the order of the file.

    Raises `InputError` for duplicate names, unknown parents, cycles, negative figures, a weight of zero, a GPU model
    that no pool has, priorities out of range, guarantees above the limit, the parent's guarantee or the cluster, and
    settings that contradict each other.
    """
    specs: dict[str, QueueSpec] = {}
    places: dict[str, Fields] = {}
    for fields in root.each("queues"):
        spec = _queue(fields, gpus_by_model)
        if spec.name in specs:
            raise fields.fail("name", "this name occurs twice; queues need different names")
        if spec.name == ROOT:
            raise fields.fail("name", "the root exists implicitly; leave it out or choose another name")
        specs[spec.name], places[spec.name] = spec, fields
        if len(specs) > MOST_QUEUES:
            raise InputError(f"{root.where('queues')}: more than {MOST_QUEUES:,} queues")
    for name, spec in specs.items():
        if spec.parent != ROOT and spec.parent not in specs:
            raise places[name].unknown("parent", "no such queue", [ROOT, *specs])
    ordered = _parents_first(specs, places)
    _check_guarantees(ordered, places, gpus_by_model, root)
    return ordered


def _queue(fields: Fields, gpus_by_model: Mapping[str, int]) -> QueueSpec:
    name = fields.text("name")
    limit, limit_by_model = _limits(fields, gpus_by_model)
    weight, weight_by_model = _weights(fields, gpus_by_model)
    borrow, lend = fields.get("borrow_limit"), fields.get("lend_limit")
    spec = QueueSpec(
        name=name,
        parent=fields.text("parent", default=ROOT),
        guarantee=_guarantee(fields, gpus_by_model),
        limit=limit,
        weight=weight,
        priority=fields.whole("priority", -MOST_PRIORITY, MOST_PRIORITY, default=0),
        order=None if fields.get("order") is None else fields.text("order", allowed=ORDERS),
        limit_by_model=limit_by_model,
        weight_by_model=weight_by_model,
        strict=fields.flag("strict", default=False),
        borrow_limit=None if borrow is None else fields.whole("borrow_limit", 0, MOST_GPUS),
        lend_limit=None if lend is None else fields.whole("lend_limit", 0, MOST_GPUS),
        within_queue=_displace(fields, "within_queue", "lower"),
        reclaim=_displace(fields, "reclaim", "any"),
        while_borrowing=_displace(fields, "while_borrowing", "never"),
        while_borrowing_priority=fields.whole(
            "while_borrowing_priority", -MOST_PRIORITY, MOST_PRIORITY, default=MOST_PRIORITY
        ),
        guarantee_kept=fields.text("guarantee_kept", default="", allowed=GUARANTEES_KEPT[1:]),
    )
    fields.done()
    _check_queue(spec, fields)
    return spec


def _displace(fields: Fields, field_name: str, default: str) -> Displace:
    return DISPLACE[fields.text(field_name, default=default, allowed=tuple(DISPLACE))]


def _check_queue(spec: QueueSpec, fields: Fields) -> None:
    """Raise `InputError` where the figures and settings of one queue contradict each other."""
    promised = sum(spec.guarantee.values())
    if spec.limit is not None and promised > spec.limit:
        raise fields.fail("limit", f"it is below the queue's guarantee of {counted(promised, 'GPU')}")
    for model, limit in spec.limit_by_model.items():
        if spec.guarantee.get(model, 0) > limit:
            raise fields.fail(
                "limit", f"that of {model} is below the queue's guarantee of {counted(spec.guarantee[model], 'GPU')}"
            )
    if spec.lend_limit is not None and spec.lend_limit > promised:
        raise fields.fail(
            "lend_limit",
            f"it exceeds what the queue can lend, its guarantee of {counted(promised, 'GPU')}; lower it "
            "or leave it out",
        )
    if spec.while_borrowing != Displace.NEVER and spec.reclaim == Displace.NEVER:
        raise fields.fail(
            "while_borrowing",
            "reclaim is never, and a queue that may not reclaim may not preempt while it borrows",
        )
    if "while_borrowing_priority" in fields.content and spec.while_borrowing == Displace.NEVER:
        raise fields.fail(
            "while_borrowing_priority", "while_borrowing is never, so it would have no effect; leave it out"
        )


def _by_model(
    fields: Fields, field_name: str, gpus_by_model: Mapping[str, int], example: str, *, with_all: bool
) -> Fields:
    """The mapping of GPU models in one field; each model must be one that a pool has."""
    value = fields.get(field_name)
    if not isinstance(value, Mapping):
        raise fields.fail(field_name, f"write GPU models and numbers, for example {example}")
    inner = Fields(value, fields.source, f"{fields.path}.{field_name}")
    for model in inner.content:
        if model not in gpus_by_model and not (with_all and model == ALL_MODELS):
            known = [*([ALL_MODELS] if with_all else []), *sorted(gpus_by_model)]
            raise inner.fail(model, f"no pool has that GPU model; {unknown_name(model, known)}")
    return inner


def _guarantee(fields: Fields, gpus_by_model: Mapping[str, int]) -> dict[str, int]:
    if fields.get("guarantee") is None:
        return {}
    inner = _by_model(fields, "guarantee", gpus_by_model, "{H100-80GB: 16}", with_all=False)
    return {model: inner.whole(model, 0, MOST_GPUS) for model in inner.content}


def _limits(fields: Fields, gpus_by_model: Mapping[str, int]) -> tuple[int | None, dict[str, int]]:
    """The limit of all GPU models together, None without one, and those of single models."""
    value = fields.get("limit")
    if value is None:
        return None, {}
    if not isinstance(value, Mapping):
        return fields.whole("limit", 0, MOST_GPUS), {}
    inner = _by_model(fields, "limit", gpus_by_model, "{all: 128, H100-80GB: 64}", with_all=True)
    limits = {model: inner.whole(model, 0, MOST_GPUS) for model in inner.content}
    return limits.pop(ALL_MODELS, None), limits


def _weights(fields: Fields, gpus_by_model: Mapping[str, int]) -> tuple[float, dict[str, float]]:
    """The weight for all GPU models together (1 where not stated), and those of single models."""
    if not isinstance(fields.get("weight"), Mapping):
        return fields.number("weight", 0.0, 1e6, default=1.0, above=True), {}
    inner = _by_model(fields, "weight", gpus_by_model, "{all: 2, H100-80GB: 1}", with_all=True)
    weights = {model: inner.number(model, 0.0, 1e6, default=1.0, above=True) for model in inner.content}
    return weights.pop(ALL_MODELS, 1.0), weights


def _parents_first(specs: Mapping[str, QueueSpec], places: Mapping[str, Fields]) -> tuple[QueueSpec, ...]:
    ordered: dict[str, QueueSpec] = {}
    waiting = list(specs.values())
    while waiting:
        ready = [spec for spec in waiting if spec.parent == ROOT or spec.parent in ordered]
        if not ready:
            chain = _cycle(waiting[0].name, specs)
            raise places[chain[0]].fail("parent", f"the queues form a cycle: {' -> '.join([*chain, chain[0]])}")
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
