"""Fragmentation: the free capacity that demand cannot use because of its shape, by cause.

The demand is packed into the free capacity as it is, then with one obstacle after another removed. What fits more is
lost to that obstacle, so the causes sum to the loss. Two demands are looked at: what is pending, and the expected mix
at the size of the free capacity, which also shows on a quiet night what could not start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.forecast import ExpectedMix
from autopilot.core.model.modes import ACTIONS_WITH, Effect
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import F64, I64, Bools, ClusterSnapshot, Names, Topology
from autopilot.core.placement.fragmentation.demand import (
    DRAWS,
    UNITS,
    Demand,
    Kind,
    expected_demand,
    limit_room,
    pending_demand,
)
from autopilot.core.placement.fragmentation.packing import pack
from autopilot.core.placement.fragmentation.supply import Domains, Stock, Supply, copies, domains_of, recut_for
from autopilot.core.placement.whatif import WhatIf

MIG_GEOMETRY, GPU_REMAINDER, NODE_REMAINDER = "mig_geometry", "gpu_remainder", "node_remainder"
TOPOLOGY, GPU_MODEL, QUOTA = "topology", "gpu_model", "quota"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why free capacity cannot be used, in words, and the effect that removes it; None: no action has that effect."""

    words: str
    effect: Effect | None = None

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions that may remove it."""
        return () if self.effect is None else ACTIONS_WITH[self.effect]


CAUSES: dict[str, Cause] = {
    MIG_GEOMETRY: Cause("on MIG GPUs that are cut into other profiles", Effect.RECUT),
    GPU_REMAINDER: Cause("in parts of GPUs beside shares or instances in use"),
    NODE_REMAINDER: Cause("on nodes that are in part in use", Effect.CONSOLIDATE),
    TOPOLOGY: Cause("spread over islands or leaves of the network", Effect.CONSOLIDATE),
    GPU_MODEL: Cause("on another GPU model than the work may use"),
    QUOTA: Cause("beyond the limits of its queues"),
}
"""Causes in the order in which they are removed."""

MOST_DOMAINS, FEWEST_DRAWS = 4096, 4
"""Domains, summed over the draws, that are packed at once."""

TOLERANCE_GPUS = 1e-6

SHAPE = (MIG_GEOMETRY, GPU_REMAINDER, NODE_REMAINDER, TOPOLOGY)
"""Causes that are about the shape of free capacity, not about who may use it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a demand of `demand_gpus` GPUs loses. `by_cause` has every cause; their sum is `stranded_gpus`."""

    demand_gpus: float
    fits_gpus: float  # of the free capacity as it is
    by_cause: tuple[tuple[str, float], ...]

    @property
    def stranded_gpus(self) -> float:
        """GPUs that would fit if no cause were in the way."""
        return sum(gpus for _, gpus in self.by_cause)


@dataclass(frozen=True, slots=True)
class PoolFragmentation:
    """One pool. `expected` is None where the mix is unknown, with the `reason`."""

    pool: str
    free_gpus: float
    pending: Loss
    expected: Loss | None
    reason: str = ""

    @property
    def index_ratio(self) -> float:
        """The fragmentation index: the share of the free GPUs that the expected mix cannot use; NaN where unknown."""
        if self.expected is None:
            return float("nan")
        return self.expected.stranded_gpus / self.free_gpus if self.free_gpus else 0.0

    @property
    def index_by_cause(self) -> tuple[tuple[str, float], ...]:
        """The parts of `index_ratio`."""
        if self.expected is None or not self.free_gpus:
            return ()
        return tuple((cause, gpus / self.free_gpus) for cause, gpus in self.expected.by_cause)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """All pools, and the widest gang of whole GPUs that fits now, by GPU model."""

    pools: tuple[PoolFragmentation, ...]
    largest_gang_gpus: tuple[tuple[str, int], ...]


def measure_fragmentation(snapshot: ClusterSnapshot, whatif: WhatIf, mix: ExpectedMix | None) -> Fragmentation:
    """The fragmentation of each pool against what is pending and against `mix`."""
    pending = pending_demand(snapshot)
    allowed_gpus = limit_room(snapshot)
    names = snapshot.names
    pools = []
    for code, pool in enumerate(names.pools):
        inside = (snapshot.nodes.pool == code) & whatif.node_ok
        models = sum(1 << model for model in np.unique(snapshot.nodes.gpu_model[inside]).tolist())
        expected, reason = None, "no forecast of the demand mix" if mix is None else mix.reason
        free_gpus = float(Stock(whatif, inside, domains_of(whatif, inside, ())).gpus) if inside.any() else 0.0
        if mix is not None and not reason:
            draws = draws_for(whatif, inside, mix)
            expected = lost(whatif, inside, expected_demand(mix, names, models, free_gpus, allowed_gpus, draws))
        waiting = _may_use(pending, models)
        pools.append(PoolFragmentation(pool, free_gpus, lost(whatif, inside, waiting), expected, reason))
    return Fragmentation(tuple(pools), largest_gangs(whatif))


def fragmentation_of(observation: Observation) -> Fragmentation:
    """The fragmentation of what a decision saw."""
    return measure_fragmentation(observation.snapshot, WhatIf(observation.snapshot), observation.forecasts.mix)


def draws_for(whatif: WhatIf, inside: Bools, mix: ExpectedMix) -> int:
    """Draws of the mix for a pool: fewer where it has many domains, because the fit of a large pool varies little."""
    domains = domains_of(whatif, inside, [kind.topology for kind in mix.kinds])
    return max(FEWEST_DRAWS, 1 << min(DRAWS, MOST_DOMAINS // max(len(domains.model), 1)).bit_length() - 1)


def stranded_pending(snapshot: ClusterSnapshot, whatif: WhatIf) -> Loss:
    """What the pending work of the whole cluster loses."""
    return lost(whatif, whatif.node_ok, pending_demand(snapshot))


def _may_use(demand: Demand, models: int) -> Demand:
    """The part of a demand that may use one of these GPU models."""
    some = [at for at, kind in enumerate(demand.kinds) if not kind.models or kind.models & models]
    return Demand(tuple(demand.kinds[at] for at in some), demand.count[:, some], demand.free_of_quota[:, some])


def largest_gangs(whatif: WhatIf) -> tuple[tuple[str, int], ...]:
    """The widest gang of whole GPUs that fits now on each GPU model: on one node, or on entirely free nodes."""
    nodes, names = whatif.snapshot.nodes, whatif.snapshot.names.gpu_models
    return tuple(
        (names[model], largest_gang(whatif, nodes.gpu_model == model)) for model in np.unique(nodes.gpu_model).tolist()
    )


def largest_gang(whatif: WhatIf, inside: Bools) -> int:
    """The widest gang of whole GPUs that fits now on these nodes."""
    free, total = whatif.node_free[inside], whatif.snapshot.nodes.gpus[inside]
    return int(max(free.max(initial=0), free[free == total].sum()))


def lost(whatif: WhatIf, inside: Bools, demand: Demand) -> Loss:
    """What a demand loses on the nodes `inside`."""
    nothing = tuple((cause, 0.0) for cause in CAUSES)
    if not demand.kinds or not inside.any():
        return Loss(demand.gpus, 0.0, nothing)
    domains = domains_of(whatif, inside, [kind.topology for kind in demand.kinds])
    stock = Stock(whatif, inside, domains)
    names = whatif.snapshot.names
    if not stock.units.any():
        return Loss(demand.gpus, 0.0, nothing)
    fits = fitting_gpus(stock.as_is(), demand.kinds, demand.count, domains, names)
    first, by_cause = fits, dict.fromkeys(CAUSES, 0.0)
    most = np.minimum(demand.free_of_quota @ demand.sizes, stock.gpus) - TOLERANCE_GPUS
    for cause, supply, kinds, count in _relaxations(stock, domains, demand):
        if (fits >= most).all():
            break  # everything fits, or everything free is used
        better = np.maximum(fitting_gpus(supply(), kinds, count, domains, names), fits)
        by_cause[cause] = float((better - fits).mean())
        fits = better
    return Loss(demand.gpus, float(first.mean()), tuple(by_cause.items()))


def _relaxations(
    stock: Stock, domains: Domains, demand: Demand
) -> list[tuple[str, Callable[[], Supply], Sequence[Kind], I64]]:
    """The causes that there are, each with the supply and demand without it and those before it."""
    kinds, count = demand.kinds, demand.count
    found: list[tuple[str, Callable[[], Supply], Sequence[Kind], I64]] = []
    if stock.cut:
        found.append((MIG_GEOMETRY, stock.recut, kinds, count))
    if stock.parted:
        found.append((GPU_REMAINDER, stock.whole_gpus, kinds, count))
    found.append((NODE_REMAINDER, stock.whole_nodes, kinds, count))
    if len(domains.model) > len(set(domains.model.tolist())):
        found.append((TOPOLOGY, stock.one_domain, kinds, count))
    last = found[-1][1]
    if len(set(domains.model.tolist())) > 1:
        kinds = tuple(_of_any_model(kind) for kind in kinds)
        last = lambda: stock.one_domain(any_model=True)  # noqa: E731
        found.append((GPU_MODEL, last, kinds, count))
    if (demand.free_of_quota != demand.count).any():
        found.append((QUOTA, last, kinds, demand.free_of_quota))
    return found


def _of_any_model(kind: Kind) -> Kind:
    return Kind(kind.members, kind.size, kind.units, kind.profile, 0, kind.topology)


def fitting_gpus(supply: Supply, kinds: Sequence[Kind], count: I64, domains: Domains, names: Names) -> F64:
    """GPUs of a demand that fit, the largest gangs first. Shape [draws]."""
    draws = len(count)
    state = copies(supply, draws)
    bins, parts = state.nodes, state.parts
    fits = np.zeros(draws)
    every = np.ones(len(domains.model), np.bool_)
    models = np.arange(parts.shape[1])
    instances = _Instances(supply, draws, names)
    opened = False
    for place, kind in enumerate(kinds):
        wanted = count[:, place]
        if not kind.units:
            may = every if not kind.models else (kind.models >> domains.model) & 1 == 1
            spread, starts = kind.topology == Topology.SPREAD, domains.starts.get(kind.topology)
            fits += kind.gpus * pack(bins, kind.size, kind.members, wanted, may, starts, spread=spread)
            continue
        if not opened:  # what whole GPUs are left may be shared
            left = bins @ np.arange(bins.shape[2])
            for domain, model in enumerate(domains.model.tolist()):
                parts[:, model, UNITS] += left[:, domain]
            opened = True
        may = np.ones(len(models), np.bool_) if not kind.models else (kind.models >> models) & 1 == 1
        placed = instances.place(kind, wanted)
        if kind.profile < 0 or supply.cuts is not None:
            placed = placed + pack(parts, kind.units, kind.members, wanted - placed, may, None)
        fits += kind.gpus * placed
    return fits


class _Instances:
    """The MIG instances of a supply, for each draw: those that are idle, or those that GPUs can be cut into."""

    def __init__(self, supply: Supply, draws: int, names: Names) -> None:
        self._names = names
        self._idle = np.repeat(supply.idle[None], draws, 0)
        self._cuts = [dict(supply.cuts) for _ in range(draws)] if supply.cuts else []

    def place(self, kind: Kind, wanted: I64) -> I64:
        """Place up to `wanted` [draws] gangs; returns how many [draws]."""
        placed = np.zeros_like(wanted)
        if kind.profile < 0:
            return placed
        if self._cuts:
            profile, models = self._names.profiles[kind.profile], self._names.gpu_models
            for draw, cuts in enumerate(self._cuts):
                most = int(wanted[draw]) * kind.members
                placed[draw] = recut_for(cuts, models, profile, kind.models, most) // kind.members
            return placed
        column = self._idle[:, :, kind.profile]
        may = np.array([not kind.models or kind.models >> model & 1 for model in range(column.shape[1])], np.int64)
        placed = np.minimum(wanted, (column * may).sum(axis=1) // kind.members)
        taken = (placed * kind.members)[:, None]
        before = np.cumsum(column * may, axis=1) - column * may
        column -= np.clip(taken - before, 0, column * may)
        return np.asarray(placed)
