"""The words of a plan to which an approval of it is bound (core/decision/bound.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from autopilot.core.model.objects import Geometry, Slot, Taken, Victim
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Change
from autopilot.core.placement.whatif import Layout


def shown_whole(change: Change, *, contract: bool) -> str:
    """What it takes from work that waits, the places, and every victim with what happens to it."""
    taken = "".join(sorted(map(_taken, change.victims)))
    return f"{shown_sides(change, contract=contract)}|{_places(change.slots)}{taken}"


def shown_sides(change: Change, *, contract: bool) -> str:
    """Whether its victims leave by contract, and what it takes from work that waits; a turn is not taken."""
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
    """What a start takes: for each node, in no order, its pool, its model, whether it is spot, and how many GPUs."""
    nodes, counts = np.unique(snapshot.gpus.node[layout.gpu], return_counts=True)
    table, names = snapshot.nodes, snapshot.names
    taken = [
        f"{names.pools[table.pool[node]]}/{names.gpu_models[table.gpu_model[node]]}/{bool(table.spot[node])}:{count}"
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True)
    ]
    return f"{sorted(taken)}{int(layout.milli.sum())}"


def _taken(victim: Victim) -> str:
    """What happens to a victim."""
    name = f"{victim.workload}:{victim.uid}:{victim.incarnation}"
    return f"|-{name}:{victim.how}:{victim.gpus}>{_places(victim.keeps)}"


def _places(slots: Sequence[Slot]) -> str:
    """What is held on which node."""
    held = Counter(f"{slot.node}{'/instance' if slot.instance else ''}:{slot.milli}" for slot in slots)
    return ",".join(f"{place}x{count}" for place, count in sorted(held.items()))
