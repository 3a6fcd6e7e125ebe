"""Small worlds for the search for victims: gangs on nodes of eight GPUs, what each offers, and who is chosen.

world = victims_world("2x8", [holds("a", 4), holds("b", 4)], need=4)
world.chosen([bid("a", 900.0), bid("b", 300.0)]) == {"b": 4}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopilot.core.model.snapshot import I32
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.quota.rules.base import RankedTarget, Target
from autopilot.core.search.victims import Search
from tests.kits.core_world import Item, snapshot


@dataclass(frozen=True)
class Bid:
    """A possible victim: the work that stopping all of it loses, and its rank in the victim order."""

    name: str
    lost_gpu_s: float
    rank: int = 0


def bid(name: str, lost_gpu_s: float, rank: int = 0) -> Bid:
    """A gang that may be taken."""
    return Bid(name, lost_gpu_s, rank)


@dataclass
class VictimsWorld:
    """A search, and the names of the gangs."""

    search: Search
    names: list[str]

    def ranked_targets(self, bids: Iterable[Bid]) -> list[RankedTarget]:
        """As rule sets make them: members above the minimum one by one, then the whole gang."""
        work, found = self.search.whatif.snapshot.workloads, []
        for each in bids:
            row = self.names.index(each.name)
            layout = self.search.whatif.layout_of(row)
            wide, member = float(layout.milli.sum() / 1000), int(work.gpus_per_member[row])
            part = RankedTarget(Target(row, float(member), whole=False), each.rank, each.lost_gpu_s * member / wide, 0)
            found += [part] * int((wide - work.min_gpus[row]) // member)
            found.append(RankedTarget(Target(row, wide, whole=True), each.rank, each.lost_gpu_s, 0))
        return found

    def chosen(
        self, bids: Iterable[Bid], allowed: Callable[[dict[str, float]], bool] | None = None
    ) -> dict[str, float] | None:
        """Name -> GPUs that are taken; `allowed` is asked in the same form."""
        targets = self.search.cheapest(
            self.ranked_targets(bids), lambda targets: allowed is None or allowed(self.named(targets))
        )
        return None if targets is None else self.named(targets)

    def named(self, targets: Sequence[Target]) -> dict[str, float]:
        """Name -> GPUs of takings."""
        return {self.names[target.row]: target.gpus for target in targets}


def victims_world(
    shape: str,
    work: Iterable[Item],
    need: int,
    member: int = 0,
    *,
    domain: Sequence[int] | None = None,
    spread: bool = False,
    suits: Sequence[bool] | None = None,
    **more: Any,
) -> VictimsWorld:
    """A newcomer of `need` GPUs in members of `member` (0: one member). `domain`, `suits`: one for each node."""
    items = list(work)
    whatif = WhatIf(snapshot(shape, items, **more))
    member = member or need
    members, tail = divmod(need, member)
    level = None if domain is None else np.array(domain, np.int32)
    usable = np.ones(len(whatif.node_free), np.bool_) if suits is None else np.array(suits)

    def fits_on(free: I32) -> bool:
        free = np.where(usable, free, 0)
        hosts = np.minimum(free // member, 1) if spread else free // member
        for each in [0] if level is None else np.unique(level).tolist():
            inside = usable if level is None else level == each
            total = int(hosts[inside].sum())
            if total > members or (total == members and (not tail or (free - hosts * member >= tail)[inside].any())):
                return True
        return False

    room = np.where(usable, whatif.node_free, 0).astype(np.int32)
    search = Search(
        whatif, room, need, member, fits_on, suits=None if suits is None else usable, domain=level, spread=spread
    )
    return VictimsWorld(search, [item.id for item in items])
