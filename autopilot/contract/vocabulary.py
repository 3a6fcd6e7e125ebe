"""The words of the contract, with their values in the snapshot."""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import StrEnum

from autopilot.core.model import objects
from autopilot.core.model.snapshot import Topology


class Trust(StrEnum):
    """The neighbours that work allows on a GPU without isolation in hardware (MPS, time slicing)."""

    UNTRUSTED = "untrusted"
    TRUSTED = "trusted"
    ACROSS = "across-tenants"


TRUST_OF: Mapping[str, objects.Trust] = types.MappingProxyType(
    {
        Trust.UNTRUSTED: objects.Trust.UNTRUSTED,
        Trust.TRUSTED: objects.Trust.TRUSTED,
        Trust.ACROSS: objects.Trust.ACROSS,
    }
)
"""The trust of the snapshot for each word."""


class Domain(StrEnum):
    """Domain that all members must share (a rack is the nodes of one leaf switch), or `spread` over nodes."""

    NODE = "node"
    ISLAND = "island"
    LEAF = "leaf"
    RACK = "rack"
    BLOCK = "block"
    ZONE = "zone"
    SPREAD = "spread"


class Level(StrEnum):
    """A domain that members can share by preference."""

    ISLAND = "island"
    LEAF = "leaf"
    RACK = "rack"
    BLOCK = "block"
    ZONE = "zone"


LEVEL_OF: Mapping[str, Topology] = types.MappingProxyType(
    {
        Domain.NODE: Topology.NONE,  # one member holds the whole gang
        Domain.ISLAND: Topology.ISLAND,
        Domain.LEAF: Topology.LEAF,
        Domain.RACK: Topology.LEAF,
        Domain.BLOCK: Topology.BLOCK,
        Domain.ZONE: Topology.ZONE,
        Domain.SPREAD: Topology.SPREAD,
    }
)
"""The topology level of the snapshot for each domain."""


def stated_sharing(trust: int, share: int) -> dict[str, str]:
    """`trust` and `share` of the snapshot as work declares them; {} for untrusted work, which declares no share."""
    if trust == objects.Trust.UNTRUSTED:
        return {}
    word = next(word for word, code in TRUST_OF.items() if code == trust)
    return {"trust": str(word), "share": objects.Share(share).name.lower()}
