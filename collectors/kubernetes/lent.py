"""GPUs held by one pod and used by others: the reservation pods of KAI and Run:ai, and the pods of their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from autopilot.core.model.snapshot import GPU_MILLI
from collectors.kubernetes.parts import NO_PARTS, Parts

Place = tuple[str, str]
"""A node, and a group on it: one GPU."""


@dataclass(slots=True)
class Lent:
    """Holders and users of each GPU, by uid of the pod. `gpu_mib`: the memory of one GPU of a node; 0 for unknown.

    They are joined if one pod holds the GPU, the part of each user is known, and the parts are at most the GPU.
    """

    gpu_mib: Callable[[str], int]
    _holders: dict[Place, set[str]] = field(default_factory=dict)
    _users: dict[Place, dict[str, Parts]] = field(default_factory=dict)
    known: dict[str, tuple[str, Parts]] = field(default_factory=dict)  # node and parts

    def put(self, uid: str, node: str, parts: Parts) -> set[str]:
        """A pod on a node; `NO_PARTS` for a pod that is gone. Returns the possibly affected pods."""
        before = self.known.get(uid, ("", NO_PARTS))
        now = (node, parts) if node and (parts.gpus or parts.holds_for) else ("", NO_PARTS)
        if now == before:
            return set()
        touched = self._around(uid)
        for place in _places(*before):
            self._holders.get(place, set()).discard(uid)
            self._users.get(place, {}).pop(uid, None)
        self.known.pop(uid, None)
        if now[0]:
            self.known[uid] = now
            for place in _places(*now):
                if parts.holds_for:
                    self._holders.setdefault(place, set()).add(uid)
                else:
                    self._users.setdefault(place, {})[uid] = parts
        return touched | self._around(uid) | {uid}

    def joined(self, uid: str) -> bool:
        """True if the GPUs held by a pod for others, or used by it of another pod, are known."""
        node, parts = self.known.get(uid, ("", NO_PARTS))
        if parts.gpus and len(parts.groups) != parts.gpus:
            return False
        places = _places(node, parts)
        return bool(places) and all(self._sound(place) for place in places)

    def loans(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """By each joined holder of a GPU: the pods on it, with their thousandths."""
        return {
            holder: tuple((uid, parts.share(self.gpu_mib(place[0]))) for uid, parts in self._users[place].items())
            for place, holders in self._holders.items()
            for holder in holders
            if self.joined(holder)
        }

    def only(self, pods: Iterable[str]) -> bool:
        """True if all of these pods are joined holders: they are no work of their own."""
        uids = list(pods)
        return bool(uids) and all(
            uid in self.known and bool(self.known[uid][1].holds_for) and self.joined(uid) for uid in uids
        )

    def users(self) -> Mapping[str, str]:
        """The node of each pod on a GPU of another pod, by uid."""
        return {uid: node for uid, (node, parts) in self.known.items() if parts.gpus}

    def unjoined(self) -> frozenset[str]:
        """Nodes with a pod that uses parts of unknown GPUs."""
        return frozenset(node for uid, (node, parts) in self.known.items() if parts.gpus and not self.joined(uid))

    def _around(self, uid: str) -> set[str]:
        places = _places(*self.known.get(uid, ("", NO_PARTS)))
        near = {each for place in places for each in self._users.get(place, ())}
        near |= {each for place in places for each in self._holders.get(place, ())}
        beside = {each for user in near for each in _places(*self.known[user])}
        return near.union(*(self._holders.get(place, ()) for place in beside))

    def _sound(self, place: Place) -> bool:
        """True if a GPU and all other GPUs of its users are joined."""
        users = self._users.get(place, {})
        return self._whole(place) and all(
            len(parts.groups) == parts.gpus and all(map(self._whole, _places(place[0], parts)))
            for parts in users.values()
        )

    def _whole(self, place: Place) -> bool:
        shares = [parts.share(self.gpu_mib(place[0])) for parts in self._users.get(place, {}).values()]
        return len(self._holders.get(place, ())) == 1 and bool(shares) and all(shares) and sum(shares) <= GPU_MILLI


def _places(node: str, parts: Parts) -> tuple[Place, ...]:
    return tuple((node, group) for group in ((parts.holds_for,) if parts.holds_for else parts.groups))
