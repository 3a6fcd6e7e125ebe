"""GPUs and instances of its node held by each pod.

The API does not name a pod's GPUs. A source that sees the GPUs names them (a GPU exporter, an allocated resource
claim); else a pod gets the free GPUs of the lowest numbers and keeps them as long as it is there. Then it is assumed to
hold them, unless it is the only one that can.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from autopilot.core.model.snapshot import GPU_MILLI
from collectors.kubernetes.asks import Ask
from collectors.kubernetes.devices import Gpu
from collectors.kubernetes.nodes import NodeFacts

Held = tuple[int, int, int]
"""A holding of a pod: number of the GPU on its node, of the instance on that GPU (-1: the GPU), and thousandths."""


@dataclass(slots=True)
class Slots:
    """The GPUs of one node and their holders."""

    facts: NodeFacts
    gpus: tuple[Gpu, ...]
    held: dict[str, tuple[Held, ...]] = field(default_factory=dict)  # by uid of the pod
    waiting: dict[str, Ask] = field(default_factory=dict)  # pods without a free GPU
    pinned: dict[str, tuple[str, ...]] = field(default_factory=dict)  # entity ids named by a source, by pod uid
    unconfirmed: set[str] = field(default_factory=set)  # pods with less known from the source than before
    _asks: dict[str, Ask] = field(default_factory=dict)
    _sure: set[str] = field(default_factory=set)  # pods with the GPUs named by a source

    def give(self, pod: str, ask: Ask) -> None:
        """A pod runs here."""
        if self._asks.get(pod) == ask:
            return
        self.take(pod)
        self._asks[pod] = ask
        if not self._place(pod, ask):
            self.waiting[pod] = ask

    def take(self, pod: str) -> None:
        """A pod is gone; its GPUs go to a pod that found nothing."""
        self._asks.pop(pod, None)
        self.waiting.pop(pod, None)
        self._sure.discard(pod)
        if self.held.pop(pod, None) is None:
            return
        for other, ask in list(self.waiting.items()):
            if self._place(other, ask):
                del self.waiting[other]

    def change(self, facts: NodeFacts, gpus: tuple[Gpu, ...]) -> None:
        """The hardware changed: everything is allocated anew, in the earlier order."""
        self.facts, self.gpus = facts, gpus
        self._again()

    def pin(self, pinned: Mapping[str, tuple[str, ...]]) -> bool:
        """Take a source's answer about the pods here. True if it changes anything.

        A pod keeps its GPUs for its lifetime. If the source names fewer of them than before, its earlier answer counts.
        """
        sure = ((pod, self.pinned[pod]) for pod in self._sure & self.pinned.keys())
        kept = {pod: named for pod, named in sure if set(pinned.get(pod, ())) < set(named)}
        new = {**pinned, **kept}
        if (self.pinned, self.unconfirmed) == (new, set(kept)):
            return False
        self.pinned, self.unconfirmed = new, set(kept)
        before = dict(self.held), set(self._sure)
        self._again()
        return (self.held, self._sure) != before

    def assumed(self, gang_of: Callable[[str], str]) -> set[str]:
        """Pods whose GPUs are assumed. `gang_of` gives the gang of a pod.

        No source names their GPUs. They may hold one of several GPUs or instances; others may hold or get some of
        these.
        """
        unsure = self.held.keys() - self._sure
        if not unsure:
            return set()
        taken, named = self._taken(self.held), self._taken(self._sure)
        gangs, places = defaultdict(set), Counter[str]()
        for pod in unsure:
            for index, part, _ in self.held[pod]:
                gangs[self._kind(index, part)].add(gang_of(pod))
        for gpu in self.gpus:
            for part in range(len(gpu.parts)) if gpu.mig else (-1,):
                kind, least = self._kind(gpu.index, part), 1 if part >= 0 else GPU_MILLI // self.facts.replicas
                places[kind] += named.get((gpu.index, part), 0) + least <= GPU_MILLI
                if taken.get((gpu.index, part), 0) + least <= GPU_MILLI or self.waiting:
                    gangs[kind].add("")
        sure = {kind for kind, found in gangs.items() if len(found) == 1 or places[kind] == 1}
        return {pod for pod in unsure if any(self._kind(at, part) not in sure for at, part, _ in self.held[pod])}

    def surplus(self) -> list[tuple[str, int, int]]:
        """Pods with more entities by a source than requested: uid, number named, number requested."""
        return [
            (pod, len(named), self._asks[pod].units)
            for pod, named in self.pinned.items()
            if pod in self._asks and len(named) > self._asks[pod].units
        ]

    def _again(self) -> None:
        asks = sorted(self._asks.items(), key=lambda each: self._rank(*each))
        self.held, self.waiting, self._asks, self._sure = {}, {}, {}, set()
        for pod, ask in asks:
            self.give(pod, ask)

    def _rank(self, pod: str, ask: Ask) -> int:
        """The order of allocation: pods named whole by a source, named before, named in part, and the rest."""
        if pod not in self.pinned:
            return 3
        return 2 if len(self.pinned[pod]) != ask.units else int(pod in self.unconfirmed)

    def unhealthy(self) -> set[int]:
        """Whole GPUs no longer offered by the device plugin.

        The plugin does not name them: free ones count, unseen ones first.
        """
        whole = [gpu.index for gpu in self.gpus if not gpu.mig]
        missing = len(whole) - self.facts.usable
        if missing <= 0:
            return set()
        busy = {index for held in self.held.values() for index, _, _ in held}
        seen = {gpu.index: gpu.seen for gpu in self.gpus}
        free = sorted((index for index in reversed(whole) if index not in busy), key=lambda index: seen[index])
        return set(free[:missing])

    # --- search ---------------------------------------------------------------------------

    def _place(self, pod: str, ask: Ask) -> bool:
        """Give a pod the entities named by a source, else free ones; False if these are too few."""
        taken = self._taken(self.held)
        named = self._allocated(ask, taken) or self._named(ask, self.pinned.get(pod, ()), taken)
        found = named or self._named_in_part(pod, ask, taken) or self._free(ask, taken)
        if found is None:
            return False
        self.held[pod] = found
        if named is not None:
            self._sure.add(pod)
        return True

    def _taken(self, pods: Iterable[str]) -> dict[tuple[int, int], int]:
        """Thousandths held by these pods, by number of the GPU and of the instance on it."""
        taken: dict[tuple[int, int], int] = {}
        for pod in pods:
            for index, part, milli in self.held[pod]:
                taken[index, part] = taken.get((index, part), 0) + milli
        return taken

    def _kind(self, index: int, part: int) -> str:
        """The profile of an instance, "" for a GPU."""
        if part < 0:
            return ""
        return next(gpu.parts[part].profile for gpu in self.gpus if gpu.index == index)

    def _free(self, ask: Ask, taken: Mapping[tuple[int, int], int]) -> tuple[Held, ...] | None:
        """Free GPUs and instances for a pod; None if not everything is free."""
        found: list[Held] = []
        profiles = dict(ask.profiles)
        gpus = ask.gpus
        if self.facts.instances_as_gpus and gpus:
            profiles[self.facts.instances_as_gpus] = profiles.get(self.facts.instances_as_gpus, 0) + gpus
            gpus = 0
        share = GPU_MILLI // self.facts.replicas
        if gpus:
            rooms = [(taken.get((gpu.index, -1), 0), gpu.index) for gpu in self.gpus if not gpu.mig]
            for _ in range(gpus):
                used, best = min(rooms, default=(GPU_MILLI, -1))  # the emptiest, then the lowest number
                if used + share > GPU_MILLI:
                    return None
                rooms[rooms.index((used, best))] = (used + share, best)
                found.append((best, -1, share))
        for profile, count in profiles.items():
            free = [
                (gpu.index, number)
                for gpu in self.gpus
                for number, part in enumerate(gpu.parts)
                if part.profile == profile and (gpu.index, number) not in taken
            ]
            if len(free) < count:
                return None
            found.extend((index, number, GPU_MILLI) for index, number in free[:count])
        return tuple(found)

    def _named_in_part(self, pod: str, ask: Ask, taken: Mapping[tuple[int, int], int]) -> tuple[Held, ...] | None:
        """The whole GPUs named for a pod by a source, completed with free ones, unseen ones first. None if they are too
        few.
        """
        pinned = self.pinned.get(pod, ())
        if not 0 < len(pinned) < ask.units or ask.profiles or self.facts.replicas > 1:
            return None
        named = self._named(replace(ask, gpus=len(pinned)), pinned, taken)
        others = {entity for other, found in self.pinned.items() if other != pod for entity in found}
        rest = [
            (gpu.uuid in others, gpu.seen, gpu.index)
            for gpu in self.gpus
            if not gpu.mig and (gpu.index, -1) not in taken and gpu.uuid not in pinned
        ]
        missing = ask.units - len(pinned)
        if named is None or len(rest) < missing:
            return None
        return (*named, *((index, -1, GPU_MILLI) for _, _, index in sorted(rest)[:missing]))

    def _allocated(self, ask: Ask, taken: Mapping[tuple[int, int], int]) -> tuple[Held, ...] | None:
        """The parts of GPUs named for a pod by a layer, if these GPUs exist and the parts are free."""
        if not ask.named:
            return None
        at = {gpu.uuid: gpu.index for gpu in self.gpus if not gpu.mig}
        found = [(at.get(uuid, -1), -1, self.facts.part_milli(memory_mib)) for uuid, memory_mib in ask.named]
        free = all(index >= 0 < milli and taken.get((index, -1), 0) + milli <= GPU_MILLI for index, _, milli in found)
        return tuple(found) if free else None

    def _named(
        self, ask: Ask, pinned: tuple[str, ...], taken: Mapping[tuple[int, int], int]
    ) -> tuple[Held, ...] | None:
        """The GPUs named by a source, if they are as many as requested and no other pod holds them."""
        if not pinned or len(pinned) != ask.units:
            return None
        share = GPU_MILLI // self.facts.replicas
        found: list[Held] = []
        for entity in pinned:
            uuid, _, gi_id = entity.partition("/")
            for gpu in self.gpus:
                if gpu.uuid != uuid:
                    continue
                if not gi_id:
                    found.append((gpu.index, -1, share))
                for number, part in enumerate(gpu.parts):
                    if gi_id and str(part.gi_id) == gi_id:
                        found.append((gpu.index, number, GPU_MILLI))
        whole = all(taken.get((index, part), 0) + milli <= GPU_MILLI for index, part, milli in found)
        return tuple(found) if whole and len(found) == ask.units else None
