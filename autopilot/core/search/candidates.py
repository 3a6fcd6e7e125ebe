"""Candidates of a search for victims or moves, in columns: thousands of gangs cost little to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64, I32, Bools
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.quota.rules.base import Claim, RankedTarget
from autopilot.core.search.holdings import Holdings, holdings_of


@dataclass(frozen=True, slots=True)
class Movers:
    """Movable gangs, in victim order. All arrays are [gangs]; `columns` exists for many gangs."""

    claims: list[Claim]
    rows: I32
    gpus: F64
    rank: I32
    member_gpus: F64  # of one member; 0 for shares and instances
    elastic: Bools  # it holds whole GPUs, and a member may go alone
    node: I32  # that they are on, -1 for several
    columns: Columns | None


@dataclass(frozen=True, slots=True)
class Columns:
    """Candidates by gang, in the order of first appearance of the gangs: holdings, rank and cost of each."""

    rows: list[int]
    held: Holdings
    rank: I32
    cost: F64


def columns_of(whatif: WhatIf, ranked_targets: Sequence[RankedTarget]) -> Columns:
    """The columns of these candidates on this what-if."""
    largest: dict[int, RankedTarget] = {}
    for ranked_target in ranked_targets:
        target = ranked_target.target
        if target.whole or target.row not in largest:
            largest[target.row] = ranked_target
    rows = list(largest)
    return Columns(
        rows,
        holdings_of(whatif, np.array(rows, np.int32)),
        np.array([ranked_target.rank for ranked_target in largest.values()], np.int32),
        np.array(
            [ranked_target.price_gpu_s + ranked_target.target.gpus for ranked_target in largest.values()], np.float64
        ),
    )
