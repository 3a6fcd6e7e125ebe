"""Tables: what `kubectl get` prints, made by the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apiserver.tables import cluster, workloads
from apiserver.tables.columns import Printer, custom_printer

if TYPE_CHECKING:
    from apiserver.kinds.base import Kind

Obj = dict[str, Any]
PRINTERS: dict[str, Printer] = {**workloads.PRINTERS, **cluster.PRINTERS}
OTHERS = custom_printer(None)  # name and age, for kinds without columns of their own


def table(kind: Kind, objects: Sequence[Obj], metadata: Obj, now: datetime, include: str) -> Obj:
    """Objects as one Table. `include` says what goes with each row: None, Metadata or Object.

    The columns of a kind are its `columns` (a Printer), those of its resource, or name and age.
    """
    printer: Printer = kind.columns or PRINTERS.get(kind.resource, OTHERS)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in printer.columns],
        "rows": [{"cells": printer.cells(obj, now), "object": _beside(obj, include)} for obj in objects],
    }


def _beside(obj: Obj, include: str) -> Obj | None:
    if include == "None":
        return None
    if include == "Object":
        return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
