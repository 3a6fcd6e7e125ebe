"""The words of a plan that an approval of it is bound to (core/decision/bound.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from autopilot.core.model.objects import Geometry, Slot, Taken, Victim
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Change
from autopilot.core.placement.whatif import Layout


def shown_whole(change: Change, *, contract: bool) -> str:
    """The losses of waiting work to it, its places, and every victim with its fate."""
    taken = "".join(sorted(map(_taken, change.victims)))
    return f"{shown_sides(change, contract=contract)}|{_places(change.slots)}{taken}"


def shown_sides(change: Change, *, contract: bool) -> str:
    """A word for victims that leave by contract, and the losses of waiting work; a turn does not count as taken."""
    sides = [each for each in change.side_effects if each.what != Taken.TURN]
    taken = "".join(f"|{each.what}:{each.uid or each.workload}:{each.gpus:g}" for each in sides)
    return f"{'contract' if contract else ''}{taken}"


def shown_nodes(nodes: Sequence[str]) -> str:
    """Reserved nodes."""
    return "".join(f"|@{node}" for node in sorted(nodes))


def shown_cut(geometry: Geometry | None) -> list[tuple[str, int]] | None:
    """A geometry in one order."""
    return None if geometry is None else sorted(geometry)


def shown_amount(layout: Layout, snapshot: ClusterSnapshot) -> str:
    """The GPUs of a start: for each node, in no order, its pool, its model, `spot` or not, and the number of GPUs."""
    nodes, counts = np.unique(snapshot.gpus.node[layout.gpu], return_counts=True)
    table, names = snapshot.nodes, snapshot.names
    taken = [
        f"{names.pools[table.pool[node]]}/{names.gpu_models[table.gpu_model[node]]}/{bool(table.spot[node])}:{count}"
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True)
    ]
    return f"{sorted(taken)}{int(layout.milli.sum())}"


def _taken(victim: Victim) -> str:
    """The fate of a victim."""
    name = f"{victim.workload}:{victim.uid}:{victim.incarnation}"
    return f"|-{name}:{victim.how}:{victim.gpus}>{_places(victim.keeps)}"


def _places(slots: Sequence[Slot]) -> str:
    """The GPUs held on each node."""
    held = Counter(f"{slot.node}{'/instance' if slot.instance else ''}:{slot.milli}" for slot in slots)
    return ",".join(f"{place}x{count}" for place, count in sorted(held.items()))
