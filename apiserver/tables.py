"""Tables: what `kubectl get` shows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apiserver.kinds.base import Kind
from apiserver.timeline import parse_stamp

Obj = dict[str, Any]


def table(_kind: Kind, objects: list[Obj], metadata: Obj, now: datetime, include: str) -> Obj:
    """Objects as one Table. `include` says what goes with each row: None, Metadata or Object."""
    rows = []
    for obj in objects:
        row: Obj = {"cells": [obj["metadata"]["name"], age(obj["metadata"].get("creationTimestamp"), now)]}
        if include == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            }
        elif include == "Object":
            row["object"] = obj
        rows.append(row)
    columns = [
        {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
        {"name": "Age", "type": "string", "format": "", "description": "", "priority": 0},
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    }


def age(since: str | None, now: datetime) -> str:
    """A time as kubectl shows how long ago it was."""
    if not since:
        return "<unknown>"
    seconds = int((now - parse_stamp(since)).total_seconds())
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes = seconds // 60
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    hours = minutes // 60
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    return f"{days}d{hours % 24}h" if days < 8 and hours % 24 else f"{days}d"
