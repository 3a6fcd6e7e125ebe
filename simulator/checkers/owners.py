"""The queue tree of a checker: guarantees and holdings, from the facts alone.

Amounts are thousandths of a GPU, by GPU model and in total; a MIG instance counts as a whole one. A tenant belongs to
the queue of its name; a tenant without one has a queue of its own, without a guarantee. Numbers include the queues
below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.facts import Started
from simulator.world.work import Jobs, Shape

MILLI = 1000


class Owners:
    """Guarantees, limits and use of every queue; the last entry of an amount is the sum over the models."""

    def __init__(self, specs: Sequence[QueueSpec], gpu_models: Sequence[str], jobs: Jobs) -> None:
        """No work yet. `specs`: parents before children."""
        self._jobs, self._models = jobs, tuple(gpu_models)
        self.name: list[str] = []
        self.paths: list[tuple[int, ...]] = []  # each queue and its ancestors
        self.guarantee: list[list[int]] = []
        self.limit: list[int | None] = []
        self.use: list[list[int]] = []
        self._row: dict[str, int] = {}
        self._of_tenant: list[int] = []
        for spec in specs:
            self._add(spec)

    def _add(self, spec: QueueSpec) -> int:
        row = self._row[spec.name] = len(self.name)
        above = self.paths[self._row[spec.parent]] if spec.parent in self._row else ()
        owed = [MILLI * spec.guarantee.get(model, 0) for model in self._models]
        self.name.append(spec.name)
        self.paths.append((row, *above))
        self.guarantee.append([*owed, sum(owed)])
        self.limit.append(None if spec.limit is None else MILLI * spec.limit)
        self.use.append([0] * (len(self._models) + 1))
        return row

    @property
    def promised(self) -> bool:
        """True when any queue has a guarantee."""
        return any(owed[-1] for owed in self.guarantee)

    def queue(self, job: int) -> int:
        """The queue of a job."""
        tenant = self._jobs.tenant[job]
        while tenant >= len(self._of_tenant):
            name = self._jobs.tenants[len(self._of_tenant)]
            row = self._row.get(name)
            self._of_tenant.append(self._add(QueueSpec(name, ROOT, {}, None, 1.0, 0, None)) if row is None else row)
        return self._of_tenant[tenant]

    def book(self, queue: int, model: int, milli: int) -> None:
        """Work of `queue` holds this much more of one GPU model (less, if negative)."""
        for each in self.paths[queue]:
            self.use[each][model] += milli
            self.use[each][-1] += milli

    def left(self, queue: int) -> list[int]:
        """The unused part of a queue's guarantee, by model and in total; negative above it."""
        return [owed - used for owed, used in zip(self.guarantee[queue], self.use[queue], strict=True)]

    def within_limits(self, queue: int, more: Sequence[int]) -> bool:
        """True when each queue on the path keeps its hard limit with `more` added, the queue itself first."""
        return all(
            limit is None or self.use[each][-1] + milli <= limit
            for each, limit, milli in (
                (each, self.limit[each], milli) for each, milli in zip(self.paths[queue], more, strict=True)
            )
        )


def least_gpus(shape: Shape) -> int:
    """GPUs of the smallest start of a gang: whole members, at least its minimum."""
    members = -(-shape.min_gpus // shape.per_member) if shape.per_member else 0
    return min(members * shape.per_member, shape.gpus) if members else shape.gpus


def held_milli(shape: Shape, fact: Started) -> int:
    """Thousandths of each GPU of a start: a share is its part, a MIG instance counts as a whole GPU."""
    return shape.milli or (fact.milli // max(len(fact.gpus), 1) if shape.whole else MILLI)


def least_milli(shape: Shape) -> int:
    """The same in thousandths; shares of a GPU count as such, MIG instances as whole ones."""
    return shape.milli or MILLI * least_gpus(shape)


def sole_model(shape: Shape, models: int) -> int | None:
    """The one GPU model for work of `shape`, if whole GPUs are its only requirement; None for any other.

    `models`: the number of GPU models.
    """
    if not shape._replace(models=0).plain:
        return None
    if models == 1:
        return 0 if not shape.models or shape.models & 1 else None
    single = shape.models and not shape.models & (shape.models - 1) and shape.models < 1 << models
    return shape.models.bit_length() - 1 if single else None


def by_width(codes: Iterable[int], shapes: Sequence[Shape]) -> list[int]:
    """Shape codes, the widest first."""
    return sorted(codes, key=lambda code: (-least_gpus(shapes[code]), code))
