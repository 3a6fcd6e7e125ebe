"""Configurations of sharing of NVIDIA's device plugin, as an operator states them."""

from __future__ import annotations

from collections.abc import Mapping

from autopilot.core.model.objects import Sharing, SharingConfig

SHARING_WORD = "^(whole|(time-slicing|mps)-([2-9]|[1-3][0-9]|4[0-8])(-single)?)$"
"""What an entry of the plugin's ConfigMap does. An MPS server has at most 48 clients."""
_KINDS = {"time-slicing": Sharing.TIME_SLICING, "mps": Sharing.MPS}


def configs_of(entries: Mapping[str, str]) -> tuple[SharingConfig, ...]:
    """The configurations by the key of their entry, each with its `SHARING_WORD`."""
    found = []
    for key, word in entries.items():
        plain = word.removesuffix("-single")
        kind, _, count = plain.rpartition("-")
        found.append(SharingConfig(key, _KINDS.get(kind, Sharing.WHOLE), int(count) if kind else 1, plain != word))
    return tuple(found)
