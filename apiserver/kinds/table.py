"""The table of the built-in kinds."""

from __future__ import annotations

from dataclasses import replace

from apiserver.kinds.base import REGISTERED, Kind
from apiserver.kinds.core import CORE
from apiserver.kinds.dra import DRA
from apiserver.kinds.system import SYSTEM
from apiserver.kinds.workloads import WORKLOADS
from apiserver.schemas import ANY, schema

TYPES = {"Event": "CoreV1Event", "ResourceClaim": "ResourceV1ResourceClaim"}  # where the type is not named as the kind
KINDS: tuple[Kind, ...] = tuple(
    replace(kind, schema=schema(TYPES.get(kind.kind, kind.kind))) if kind.schema is ANY else kind
    for kind in (*CORE, *WORKLOADS, *SYSTEM, *DRA)
)
REGISTERED.update((kind.api_version, kind.kind) for kind in KINDS)
