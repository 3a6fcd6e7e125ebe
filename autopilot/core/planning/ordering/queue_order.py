"""The order of service between queues, changing with every start.

Latency-critical work comes before interactive work, and that before batch work. Within a class, the next gang is found
by descending the queue tree. On each level the child is chosen by these keys: highest priority; an overdue next gang,
oldest first; least saturation (use / fair share) after its next gang is added; the older next gang. A rule set may
instead order the first gangs of all queues by its own key; overdue gangs then come before all others. Inside a queue,
overdue gangs come first; the rest of the order is given and does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from autopilot.core.quota.ledger import QuotaLedger

Key = tuple[float, ...]
Group = tuple[Sequence[int], Mapping[int, Sequence[int]]]
"""Gangs of one class: overdue positions in order, and the positions of each queue in order."""
Extra = Callable[[int], tuple[float, tuple[int, ...]]]
"""GPUs (and their kinds) that starting the gang at a position would add to its queue's use."""


class QueueRotation:
    """Iterates over positions in the order of service.

    Gangs may start between two calls of `next`. After use went down, call `rebuild`.
    """

    def __init__(
        self,
        ledger: QuotaLedger,
        groups: Sequence[Group],
        submit_s: Sequence[float],
        queues: Sequence[int],
        extra: Extra,
        head_key: Callable[[int], Key] | None = None,
        host: Callable[[int], Sequence[float]] | None = None,
    ) -> None:
        """`groups` are the classes in order; `submit_s` and `queues` are indexed by position.

        `head_key` orders the first gangs of all queues and must not decrease while use grows; None: the queue tree
        orders them. `host` returns the added CPU and memory for a start of the gang at a position.
        """
        self._books, self._submit_s, self._queues = ledger, submit_s, queues
        self._extra, self._head_key, self._host = extra, head_key, host
        self._groups: list[Group] = list(reversed(groups))
        self._overdue = {at for overdue, _ in groups for at in overdue}
        self._lines: dict[int, list[int]] = {}
        self._heaps: dict[int, list[tuple[Key, int]]] = {}
        self._last: tuple[int, ...] = ()
        self._stale = False  # the heaps do not reflect the present ledger
        self._served: dict[tuple[object, ...], float] = {}  # saturations, as of `_served_as_of` ledger entries
        self._served_as_of = -1
        self._head_keys: dict[int, Key] = {}  # of first gangs by position, as of `_head_keys_as_of` ledger entries
        self._head_keys_as_of = -1

    def next(self) -> int | None:
        """The next position; None after the last."""
        while True:
            if len(self._lines) == 1:
                return self._from_the_only_line()
            if self._lines:
                self._refresh()
                return self._from_queues()
            if not self._groups:
                return None
            overdue, waiting = self._groups.pop()
            lines: dict[int, list[int]] = {}
            for at in overdue:
                lines.setdefault(self._queues[at], []).append(at)
            for queue, positions in waiting.items():
                lines.setdefault(queue, []).extend(positions)
            self._lines = {queue: line[::-1] for queue, line in lines.items() if line}
            self._stale = True

    def again(self, position: int, rank: Callable[[int], Key]) -> None:
        """Return a position to its queue, after the gangs of lower `rank`."""
        line = self._lines.setdefault(self._queues[position], [])
        own, at = rank(position), 0
        while at < len(line) and rank(line[at]) < own:
            at += 1
        line.insert(at, position)
        self._stale = True

    def rebuild(self) -> None:
        """Order the queues again, because the use of a queue went down."""
        self._stale = True

    def drop(self, queue: int) -> list[int]:
        """Remove the remaining positions of a queue, of every class, and return them in order."""
        dropped = list(reversed(self._lines.pop(queue, [])))
        later: list[Group] = []
        for overdue, waiting in reversed(self._groups):
            dropped += [at for at in overdue if self._queues[at] == queue]
            dropped += waiting.get(queue, [])
            rest = {other: positions for other, positions in waiting.items() if other != queue}
            later.append(([at for at in overdue if self._queues[at] != queue], rest))
        self._groups = later[::-1]
        self._stale = True
        return dropped

    def _refresh(self) -> None:
        """Bring the heaps up to date with the ledger."""
        if self._stale:
            self._build()
        elif self._last:
            self._put_back()
        self._last, self._stale = (), False

    def _build(self) -> None:
        """Build the heap of each inner queue, deepest first."""
        self._heaps = {}
        if self._head_key is not None:
            self._heaps[0] = [(self._flat_key(self._head_key, queue), queue) for queue in self._lines]
            heapify(self._heaps[0])
            return
        parents = {0}
        for queue in self._lines:
            parents.update(self._books.paths[queue][1:])
        for parent in sorted(parents, reverse=True):  # children come after their parents
            self._heaps[parent] = []
            # an inner queue competes with those below it
            for child in (
                *self._books.children[parent],
                parent,
            ):
                self._enter(parent, child)

    def _enter(self, parent: int, child: int) -> None:
        """Push a child with its present key to the heap of its parent, if it has a gang left."""
        head = self._own(child) if child == parent else self._head(child)
        if head is not None:
            heappush(self._heaps[parent], (self._key_at(child, head), child))

    def _own(self, queue: int) -> int | None:
        line = self._lines.get(queue)
        return line[-1] if line else None

    def _head(self, queue: int) -> int | None:
        """The next position in a queue or below it."""
        heap = self._heaps.get(queue)
        if heap is None:
            return self._own(queue)
        if not heap:
            return None
        child = heap[0][1]
        return self._own(queue) if child == queue else self._head(child)

    def _key_at(self, queue: int, position: int) -> Key:
        ledger = self._books
        tier, submit_s = -float(ledger.queues.priority[queue]), self._submit_s[position]
        if position in self._overdue:
            return (tier, 0.0, submit_s, submit_s, float(queue))
        served = self._saturation(queue, position) if queue else inf
        return (tier, 1.0, served, submit_s, float(queue))

    def _saturation(self, queue: int, position: int) -> float:
        """Saturation of a queue after the gang at `position` is added; cached by the amounts added."""
        if self._served_as_of != self._books.entries:
            self._served_as_of = self._books.entries
            self._served.clear()
        gpus, kinds = self._extra(position)
        host = self._host(position) if self._host is not None else ()
        key = (queue, gpus, kinds, *host)
        if key not in self._served:
            self._served[key] = self._books.saturation(queue, gpus, kinds, host)
        return self._served[key]

    def _flat_key(self, head_key: Callable[[int], Key], queue: int) -> Key:
        head = self._lines[queue][-1]
        if self._head_keys_as_of != self._books.entries:
            self._head_keys_as_of = self._books.entries
            self._head_keys.clear()
        if head not in self._head_keys:
            own = (-inf,) if head in self._overdue else head_key(head)
            self._head_keys[head] = (*own, self._submit_s[head], float(queue))
        return self._head_keys[head]

    def _from_the_only_line(self) -> int:
        [(queue, line)] = self._lines.items()
        position = line.pop()
        if not line:
            del self._lines[queue]
        self._last, self._stale = (), True
        return position

    def _from_queues(self) -> int:
        """The first gang of the next queue: by descending the tree, or by the least head key."""
        path = [0]
        while True:
            child = self._least(self._head_key) if self._head_key is not None else heappop(self._heaps[path[-1]])[1]
            if child == path[-1] or child not in self._heaps:
                self._last = (*path, child)
                line = self._lines[child]
                position = line.pop()
                if not line:
                    del self._lines[child]
                return position
            path.append(child)

    def _least(self, head_key: Callable[[int], Key]) -> int:
        """The queue with the least present key; a start in another queue may have raised its stored key."""
        heap = self._heaps[0]
        while True:
            queue = heappop(heap)[1]
            now = self._flat_key(head_key, queue)
            if not heap or now <= heap[0][0]:
                return queue
            heappush(heap, (now, queue))

    def _put_back(self) -> None:
        """Push the path of the last position back to its heaps, with present keys."""
        *path, leaf = self._last
        if self._head_key is not None:
            if leaf in self._lines:
                heappush(self._heaps[0], (self._flat_key(self._head_key, leaf), leaf))
            return
        child: int = leaf
        for parent in reversed(path):
            self._enter(parent, child)
            child = parent
