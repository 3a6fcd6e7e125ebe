"""The devices of all nodes, read and laid out again only for nodes with changed slices or claims.

With dynamic MIG a node of 8 GPUs lists some 200 devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from collectors.kubernetes.devices import Gpu
from collectors.kubernetes.dra_devices import DRIVER, Boards, Key, Offer, Taken, boards_of, read_slices
from collectors.kubernetes.dra_wire import ResourceSlice


@dataclass(slots=True)
class _Node:
    slices: tuple[ResourceSlice, ...]
    offer: Offer
    taken: dict[Key, Taken] | None = None  # None: its boards are not those of the offer
    boards: Boards = field(default_factory=Boards)


_NOBODY = _Node((), Offer())


class DraNodes:
    """Offers of each node by its slices, and the devices that exist under the present claims."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._of_pool: dict[str, _Node] = {}
        self.on_demand: frozenset[str] = frozenset()
        """Profiles whose instances exist only while a claim has them."""
        self.placed: frozenset[str] = frozenset()
        """Those with memory slices stated by a driver for each device."""

    def read(self, slices: Iterable[ResourceSlice]) -> None:
        """All slices as they are now."""
        by_node: dict[str, list[ResourceSlice]] = defaultdict(list)
        for each in slices:
            if each.spec.driver == DRIVER and each.spec.node_name:
                by_node[each.spec.node_name].append(each)
        before, self._nodes, self._of_pool = self._nodes, {}, {}
        for name, found in sorted(by_node.items()):
            known = before.get(name)
            if known is None or [id(each) for each in known.slices] != [id(each) for each in found]:
                known = _Node(tuple(found), read_slices(found))
            self._nodes[name] = known
            for each in found:
                self._of_pool.setdefault(each.spec.pool.name, known)
        kinds = frozenset[tuple[str, bool]]().union(*(each.offer.kinds for each in self._nodes.values()))
        self.on_demand = frozenset(name for name, lasting in kinds if not lasting and (name, True) not in kinds)
        self.placed = frozenset[str]().union(*(each.offer.placed for each in self._nodes.values()))

    def allocate(self, taken: Mapping[Key, Taken]) -> None:
        """Take in the devices of claims."""
        by_pool: dict[str, dict[Key, Taken]] = defaultdict(dict)
        for key, each in taken.items():
            by_pool[key[0]][key] = each
        having: dict[int, dict[Key, Taken]] = defaultdict(dict)
        for pool, found in by_pool.items():
            having[id(self._of_pool.get(pool, _NOBODY))].update(found)
        for node in self._nodes.values():
            now = having.get(id(node), {})
            if node.taken != now:
                node.taken, node.boards = now, boards_of(node.offer, now)

    def of_pool(self, pool: str) -> list[str]:
        """The node of a pool; for an unknown pool ("") every node with listed devices."""
        node = self._of_pool.get(pool)
        return [name for name, each in self._nodes.items() if each is node or not pool]

    def offer(self, pool: str) -> Offer:
        """The offer of the node of a pool."""
        return self._of_pool.get(pool, _NOBODY).offer

    def boards(self, pool: str) -> Boards:
        """The existing devices on the node of a pool."""
        return self._of_pool.get(pool, _NOBODY).boards

    def gpus(self) -> dict[str, tuple[Gpu, ...]]:
        """GPUs by node, in the order of their numbers."""
        return {name: gpus for node in self._nodes.values() for name, gpus in node.boards.gpus.items()}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Nodes and the contradictions of their slices and claims."""
        for node in self._nodes.values():
            yield from node.offer.problems
            yield from node.boards.problems
