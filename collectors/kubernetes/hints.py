"""Preferences of work for its nodes: its images, and a suitable NUMA policy.

Hints decide between equal nodes. The snapshot knows them as bits: a node has some, and waiting work prefers some. A bit
belongs to a hint for as long as waiting work prefers it; with more hints than bits the others count for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from autopilot.contract.annotations import NUMA_POLICY
from collectors.kubernetes.asks import is_gpu
from collectors.kubernetes.wire import Node, PodSpec

MOST = 63
"""Most hints with a bit in the snapshot."""

NUMA_GPUS = 4
"""GPUs of one NUMA domain: boards of eight GPUs have two."""
ALIGNS = frozenset({"single-numa-node", "restricted"})
"""Policies of the topology manager that give a pod GPUs, CPUs and memory of one domain, if it fits there."""
REFUSES = "single-numa-node"
"""Under it the kubelet refuses a pod in need of more than one domain."""

ALIGNED, WHOLE = "numa: aligned", "numa: takes pods of several domains"


@dataclass(slots=True)
class Hints:
    """The hints preferred by waiting work, and the nodes with them."""

    version: int = 0  # rises with every change in the table of nodes
    labelled: frozenset[str] = frozenset()  # nodes with a NUMA policy
    _bits: dict[str, int] = field(default_factory=dict)
    _of: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by key of the gang
    _users: dict[str, int] = field(default_factory=dict)
    _images: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by node

    def prefer(self, key: str, wanted: Iterable[str]) -> int:
        """Preferences of a gang from now on, as a bit set; () for nothing."""
        asked, before = tuple(dict.fromkeys(wanted)), self._of.pop(key, ())
        for hint in asked:
            self._users[hint] = self._users.get(hint, 0) + 1
        for hint in before:
            self._users[hint] -= 1
            if not self._users[hint]:
                del self._users[hint]
                self._bits.pop(hint, None)
        if asked:
            self._of[key] = asked
        return sum(1 << bit for hint in asked if (bit := self._bit(hint)) is not None)

    def _bit(self, hint: str) -> int | None:
        if hint not in self._bits:
            free = set(range(MOST)).difference(self._bits.values())
            if not free:
                return None
            self._bits[hint] = min(free)
            self.version += 1
        return self._bits[hint]

    def see(self, node: Node) -> None:
        """Take in the images and the NUMA policy of a node; its list of images is not kept in the object."""
        name, before = node.metadata.name, self._images.get(node.metadata.name, ())
        if node.status.images is not None:  # None: none is reported, or they were taken in before
            images = tuple(sorted({_full(each) for found in node.status.images for each in found.names or ()}))
            node.status.images = None  # with the object the list would be kept for each node
            self._images[name] = images
            self.version += not self._bits.keys().isdisjoint(set(images).symmetric_difference(before))
        if bool(node.metadata.label(NUMA_POLICY)) != (name in self.labelled):
            self.labelled = self.labelled ^ {name}

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._images.pop(node, None)
        self.labelled = self.labelled - {node}

    def of_node(self, node: Node) -> int:
        """The hints of a node, as a bit set."""
        bits = self._bits
        if not bits:
            return 0
        found = sum(1 << bits[each] for each in self._images.get(node.metadata.name, ()) if each in bits)
        policy = node.metadata.label(NUMA_POLICY)
        found |= 1 << bits[ALIGNED] if ALIGNED in bits and policy in ALIGNS else 0
        return found | (1 << bits[WHOLE] if WHOLE in bits and policy != REFUSES else 0)

    def of_pods(self, specs: Iterable[PodSpec], gpus: int) -> list[str]:
        """Preferences of pods with these specs and `gpus` whole GPUs each (0: parts of one)."""
        found = [
            _full(each.image)
            for spec in specs
            for each in (*(spec.containers or ()), *(spec.init_containers or ()))
            if each.image
        ]
        if self.labelled and gpus > 1:
            found.append(ALIGNED if gpus <= NUMA_GPUS else WHOLE)
        return found


def main_image(spec: PodSpec) -> str:
    """The image of the first container that asks for a GPU, else of the first one; "" for none.

    It is the name in the spec, with its digest where the owner pins one: a pod that waits has no other.
    """
    containers = spec.containers or []
    asks = (each for each in containers if each.resources is not None and any(map(is_gpu, each.resources.limits or ())))
    main = next(asks, containers[0] if containers else None)
    return _full(main.image) if main is not None and main.image else ""


def _full(image: str) -> str:
    """The name of an image as a node reports it: with registry, and with a tag or a digest."""
    host, slash, _ = image.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        image = f"docker.io/{image}" if slash else f"docker.io/library/{image}"
    tagged = "@" in image or ":" in image.rpartition("/")[2]
    return sys.intern(image if tagged else f"{image}:latest")
