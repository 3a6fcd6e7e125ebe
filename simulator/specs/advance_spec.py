"""The `reservations` of a cluster file: GPUs of a model for the work of a queue, from a time on.

reservations:
  - name: launch            # required, different in each
    queue: research         # required: its work, and that of the queues below it, may use them
    gpu_model: H100-80GB    # required
    gpus: 32                # required
    from: 9h                # required; time from the start of the run, or of the job file
    grace: 30m              # unused GPUs are released after it; left out: 30m
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import AdvanceTable, empty, make
from autopilot.core.model.units import parse_duration_s
from simulator.specs.clusterqueues import QueueSpec
from simulator.specs.fields import Fields

GRACE_S = 1800.0
LONGEST_S = 3650 * 86_400.0
MOST_RESERVATIONS = 10_000


@dataclass(frozen=True, slots=True)
class AdvanceSpec:
    """One advance reservation; times in seconds from the start of the run."""

    name: str
    queue: str
    gpu_model: str
    gpus: int
    start_s: float
    grace_s: float


def parse_advance(
    root: Fields, gpus_by_model: Mapping[str, int], queues: Sequence[QueueSpec]
) -> tuple[AdvanceSpec, ...]:
    """The reservations of a cluster file, in its order.

    Raises `InputError` for duplicate names, unknown queues and GPU models, more GPUs than the cluster or a limit on the
    queue's path allows, invalid times, and reservations that together exceed the cluster at some time.
    """
    found: list[AdvanceSpec] = []
    for fields in root.each("reservations"):
        spec = _spec(fields, gpus_by_model, queues)
        if any(spec.name == other.name for other in found):
            raise fields.fail("name", "this name occurs twice; reservations need different names")
        together = spec.gpus + sum(other.gpus for other in found if _overlap(spec, other))
        if together > gpus_by_model[spec.gpu_model]:
            raise fields.fail(
                "gpus",
                f"with those that overlap it {together:,} x {spec.gpu_model} are reserved at one time, "
                f"but the cluster has {gpus_by_model[spec.gpu_model]:,}",
            )
        found.append(spec)
        if len(found) > MOST_RESERVATIONS:
            raise InputError(f"{root.where('reservations')}: more than {MOST_RESERVATIONS:,} reservations")
    return tuple(found)


def _spec(fields: Fields, gpus_by_model: Mapping[str, int], queues: Sequence[QueueSpec]) -> AdvanceSpec:
    by_name = {queue.name: queue for queue in queues}
    name, queue = fields.text("name"), fields.text("queue")
    if queue not in by_name:
        raise fields.unknown("queue", "no such queue", by_name)
    model = fields.text("gpu_model")
    if model not in gpus_by_model:
        raise fields.unknown("gpu_model", "no pool has that GPU model", sorted(gpus_by_model))
    spec = AdvanceSpec(
        name=name,
        queue=queue,
        gpu_model=model,
        gpus=fields.whole("gpus", 1, gpus_by_model[model]),
        start_s=_duration_s(fields, "from", None),
        grace_s=_duration_s(fields, "grace", GRACE_S),
    )
    fields.done()
    above: QueueSpec | None = by_name[queue]
    while above is not None:
        limits = [above.limit, above.limit_by_model.get(model)]
        least = min((limit for limit in limits if limit is not None), default=None)
        if least is not None and spec.gpus > least:
            raise fields.fail("gpus", f"queue {above.name} may hold {least:,} of them at most")
        above = by_name.get(above.parent)
    return spec


def _duration_s(fields: Fields, field: str, default_s: float | None) -> float:
    value = fields.get(field)
    if value is None and default_s is not None:
        return default_s
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        raise fields.fail(field, "write a duration such as 90s, 15m or 8h")
    seconds = parse_duration_s(value, fields.where(field))
    if not 0 <= seconds <= LONGEST_S:
        raise fields.fail(field, "write a duration from 0 s to 3650d")
    return seconds


def _overlap(one: AdvanceSpec, other: AdvanceSpec) -> bool:
    """Whether both are held at one time. Work that uses one may run longer, which is not counted."""
    first, second = sorted((one, other), key=lambda each: each.start_s)
    return one.gpu_model == other.gpu_model and second.start_s < first.start_s + first.grace_s


def advance_table(specs: Sequence[AdvanceSpec], queues: Sequence[str], models: Sequence[str]) -> AdvanceTable:
    """The table of a snapshot; `queues` and `models` by their codes there."""
    if not specs:
        none: AdvanceTable = empty(AdvanceTable)
        return none
    ids = np.empty(len(specs), object)
    ids[:] = [spec.name for spec in specs]
    table: AdvanceTable = make(
        AdvanceTable,
        id=ids,
        queue=[list(queues).index(spec.queue) for spec in specs],
        gpu_model=[list(models).index(spec.gpu_model) for spec in specs],
        gpus=[spec.gpus for spec in specs],
        start_s=[spec.start_s for spec in specs],
        grace_s=[spec.grace_s for spec in specs],
    )
    return table
