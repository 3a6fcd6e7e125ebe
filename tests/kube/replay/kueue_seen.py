"""Objects as Kueue's topics show them; trimmed ones do not say their kind, so each is named by its resource."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.kube.replay.recording import Recording, Step

Obj = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace, name


@dataclass(frozen=True)
class Seen:
    """An object at one moment."""

    t_s: float
    change: str
    key: Key
    obj: Obj
    step: Step


def parts_of(path: str) -> tuple[str, str, str, str]:
    """Namespace, resource, name and subresource of a path."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    parts += [""] * 3
    return namespace, parts[0], parts[1], parts[2]


def seen_in(recording: Recording) -> list[Seen]:
    """Every object that an answer or an event shows, in order of time."""
    found: list[Seen] = []
    for step in recording.steps:
        namespace, resource, _, below = parts_of(step.request.get("path", ""))
        if below not in {"", "status", "scale"}:
            continue
        events = [(each["t"], each["type"], each.get("object") or {}) for each in step.events or () if "type" in each]
        if step.events is None and 200 <= step.status < 300 and "dryRun" not in (step.request.get("query") or {}):
            body = step.body if isinstance(step.body, dict) else {}
            items = body["items"] if isinstance(body.get("items"), list) else [body]
            events = [(step.t_s + step.latency_s, step.request.get("method", ""), each) for each in items]
        for t_s, change, obj in events:
            name = (obj.get("metadata") or {}).get("name") if isinstance(obj, dict) else None
            if name:
                space = obj["metadata"].get("namespace", namespace)
                found.append(Seen(t_s, change, (resource, space, name), obj, step))
    return sorted(found, key=lambda each: each.t_s)


def values(value: Any, name: str) -> Iterator[Any]:
    """Every value under a name, anywhere inside."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == name:
                yield each
            yield from values(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from values(each, name)


def workloads_in(recording: Recording) -> list[tuple[str, str]]:
    """Namespace and name of each Workload that is shown, or asked for and there."""
    found = [each.key[1:] for each in seen_in(recording) if each.key[0] == "workloads"]
    for step in recording.steps:
        namespace, resource, name, _ = parts_of(step.request.get("path", ""))
        if resource == "workloads" and name and step.status != 404:
            found.append((namespace, name))
    found += pending_in(recording)
    return list(dict.fromkeys((namespace, name) for namespace, name in found))


def pending_in(recording: Recording) -> dict[tuple[str, str], Obj]:
    """Namespace and name of each Workload that a summary of pending ones lists, the oldest first: its row there."""
    rows: list[Obj] = []
    for step in recording.steps:
        found = step.body.get("items") if isinstance(step.body, dict) else None
        if parts_of(step.request.get("path", ""))[3] == "pendingworkloads" and isinstance(found, list):
            rows += found
    rows.sort(key=lambda row: str(row["metadata"].get("creationTimestamp", "")))
    return {(row["metadata"]["namespace"], row["metadata"]["name"]): row for row in rows}


def condition(workload: Obj, kind: str) -> Obj:
    """A condition of a workload; empty if it has none of that type."""
    rows = (workload.get("status") or {}).get("conditions") or []
    return next((each for each in rows if each.get("type") == kind), {})
