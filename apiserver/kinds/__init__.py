"""The table of the built-in kinds."""

from __future__ import annotations

from apiserver.kinds.base import STATUS, Kind, Kinds, Subresource
from apiserver.kinds.core import CORE
from apiserver.kinds.dra import DRA
from apiserver.kinds.system import SYSTEM
from apiserver.kinds.workloads import WORKLOADS

KINDS: tuple[Kind, ...] = (*CORE, *WORKLOADS, *SYSTEM, *DRA)

__all__ = ["KINDS", "STATUS", "Kind", "Kinds", "Subresource"]
