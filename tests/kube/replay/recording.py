"""Recorded topics as the replay reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from apiserver.kinds.table import KINDS
from apiserver.routing import route
from autopilot.core.model.errors import InputError

Obj = dict[str, Any]
LAG_S = 0.02  # from the time that a controller writes into an object to the event that shows it


@dataclass(frozen=True)
class Step:
    """One recorded exchange; `events` is None where it is no watch."""

    index: int
    name: str
    t_s: float
    request: Obj
    status: int
    body: Any
    volatile: tuple[str, ...] = ()
    trimmed: bool = False
    keeps_managed_fields: bool = False
    events: list[Obj] | None = None
    ended: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    latency_s: float = 0.0
    raw: Obj = field(default_factory=dict, repr=False)
    broken: str = ""  # why the step cannot be read


@dataclass(frozen=True)
class Action:
    """What was done to a server process: SIGSTOP, SIGCONT, SIGKILL, SIGTERM, start, or several in one text."""

    t_s: float
    process: str
    what: str


@dataclass(frozen=True)
class Recording:
    """One topic."""

    topic: str
    about: str
    notes: tuple[str, ...]
    steps: tuple[Step, ...]
    actions: tuple[Action, ...] = ()

    @property
    def number(self) -> str:
        """The leading digits of the topic."""
        return self.topic.partition("-")[0]


def read_raw(path: Path) -> Obj:
    """The JSON of a file. Raises InputError."""
    try:
        raw: Obj = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"is no recording: {error!r}", "name a file of recorded steps") from error
    return raw


def parse(raw: Obj) -> Recording:
    """A topic from its JSON."""
    steps = tuple(_step(index, each) for index, each in enumerate(raw["steps"]))
    actions = tuple(Action(each["t"], each["process"], each["what"]) for each in raw.get("actions") or ())
    return Recording(raw["topic"], raw["about"], tuple(raw["notes"]), steps, actions)


def _step(index: int, raw: Any) -> Step:
    """A step; one of another shape is a step that cannot be played."""
    try:
        return _read_step(index, raw)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        name = raw.get("name") if isinstance(raw, dict) else None
        broken = f"has not the shape of a step: {error!r}"
        return Step(index, str(name or f"step {index}"), 0.0, {}, 0, None, broken=broken)


def _read_step(index: int, raw: Obj) -> Step:
    response = raw.get("response") or {}
    events = _events(raw.get("events"))
    body, status = response.get("body"), int(response.get("status", 0))
    if events and "body" in events[0]:  # a watch that was refused
        body, events = events[0]["body"], None
    return Step(
        index=index,
        name=raw["name"],
        t_s=float(raw.get("t", 0.0)),
        request=_request(raw["request"]),
        status=status,
        body=body,
        volatile=tuple(raw.get("volatile") or ()),
        trimmed=bool(raw.get("trimmed")),
        keeps_managed_fields=bool(raw.get("keeps_managed_fields")),
        events=events,
        ended=raw.get("ended", ""),
        headers=response.get("headers") or {},
        latency_s=(raw.get("ms") or 0.0) / 1000,
        raw=raw,
    )


def _events(raw: Any) -> list[Obj] | None:
    for each in raw or ():
        if not isinstance(each.get("object") or {}, dict) or (
            "type" in each and not isinstance(each["t"], (int, float))
        ):
            raise TypeError(f"no event: {each!r}"[:200])
    return raw if raw is None else list(raw)


def _request(raw: Any) -> Obj:
    for name, wanted in (("method", str), ("path", str), ("query", dict), ("headers", dict), ("as", str)):
        if raw.get(name) is not None and not isinstance(raw[name], wanted):
            raise TypeError(f"request.{name} is {raw[name]!r}")
    return dict(raw)


@dataclass(frozen=True)
class Sighting:
    """An object as a body or an event shows it. `change` is the type of the event, or the method of the request."""

    t_s: float
    obj: Obj
    change: str
    step: Step
    whole: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, namespace, name."""
        metadata = self.obj["metadata"]
        return self.obj.get("kind", ""), metadata.get("namespace", ""), metadata["name"]


def sightings(recording: Recording) -> list[Sighting]:
    """Every object that the recording shows, in order of time."""
    found = [each for step in recording.steps for each in _of_step(step)]
    return sorted(found, key=lambda each: each.t_s)


def _of_step(step: Step) -> Iterator[Sighting]:
    for event in step.events or ():
        obj = event.get("object")
        if event["type"] in {"ADDED", "MODIFIED", "DELETED"} and obj:
            for each in _objects(obj, step):
                yield Sighting(event["t"], each, event["type"], step, not step.trimmed)
    if step.events is None and step.status < 300 and "dryRun" not in step.request.get("query", {}):
        for each in _objects(step.body, step):
            yield Sighting(step.t_s + step.latency_s, each, step.request.get("method", ""), step, not step.trimmed)


def _objects(body: Any, step: Step) -> Iterator[Obj]:
    if not isinstance(body, dict):
        return
    path = step.request.get("path", "")
    if isinstance(body.get("rows"), list):
        for row in body["rows"]:
            if "object" in row:
                yield from _named((row["object"] or {}) | {"kind": ""}, path)
    elif isinstance(body.get("items"), list):
        kind = body.get("kind", "").removesuffix("List")
        for item in (each for each in body["items"] if isinstance(each, dict)):
            yield from _named({"kind": kind, "apiVersion": body.get("apiVersion", "")} | item, path)
    elif body.get("kind") != "Status":
        api_version, kind = kind_of(path)
        yield from _named({"kind": kind, "apiVersion": api_version} | body, path)


def kind_of(path: str) -> tuple[str, str]:
    """The apiVersion and kind that a path of a built-in resource is about; "" for others."""
    found = route(path)
    if found is None:
        return "", ""
    for kind in KINDS:
        if (kind.group, kind.version, kind.plural) == (found.group, found.version, found.plural):
            return kind.api_version, kind.kind
    return "", ""


def _named(obj: Any, path: str) -> Iterator[Obj]:
    if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict) and obj["metadata"].get("name"):
        if not obj["metadata"].get("namespace") and "/namespaces/" in path:
            space = path.partition("/namespaces/")[2].split("/")
            if len(space) > 1:
                obj = obj | {"metadata": obj["metadata"] | {"namespace": space[0]}}
        yield obj


def owners(recording: Recording) -> list[tuple[tuple[str, str, str], str]]:
    """Kind, namespace and name, and uid, of the owners that objects name, and of jobs by the labels of their pods."""
    found: list[tuple[tuple[str, str, str], str]] = []
    for step in recording.steps:
        shown = [each.get("object") for each in step.events or ()] if step.events is not None else [step.body]
        for each in shown:
            _owners(each, step.request.get("path", "").partition("/namespaces/")[2].partition("/")[0], found)
    return list(dict.fromkeys(found))


def _owners(value: Any, space: str, found: list[tuple[tuple[str, str, str], str]]) -> None:
    if isinstance(value, list):
        for each in value:
            _owners(each, space, found)
    elif isinstance(value, dict):
        name, uid = value.get("batch.kubernetes.io/job-name"), value.get("batch.kubernetes.io/controller-uid")
        if name and uid:
            found.append((("Job", space, name), uid))
        references = value.get("ownerReferences") or ()
        found += [((each["kind"], space, each["name"]), each["uid"]) for each in references if each.get("uid")]
        for each in value.values():
            _owners(each, space, found)


def start_of(recording: Recording) -> datetime:
    """When the topic began by the server's clock: objects show the whole second in which they were written.

    An answer to a creation bounds it from both sides. A watch bounds it from below: no time in an object is later
    than the event that shows it; and from above within the LAG_S that a write takes to become an event.
    """
    low, high = 0.0, float("inf")
    for step in recording.steps:
        metadata = step.body.get("metadata") if isinstance(step.body, dict) else None
        if step.status == 201 and isinstance(metadata, dict) and metadata.get("creationTimestamp"):
            created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
            low, high = max(low, created - step.t_s - step.latency_s), min(high, created + 1 - step.t_s)
    for t_s, stamp_s in _fresh_times(recording):
        low, high = max(low, stamp_s - t_s), min(high, stamp_s + 1 - t_s + LAG_S)
    if not low:
        seen = [each.obj["metadata"].get("creationTimestamp") for each in sightings(recording)]
        times = [datetime.fromisoformat(text) for text in seen if text]
        return max(times) if times else datetime(2026, 11, 23, tzinfo=UTC)
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=(low + max(low, min(high, low + 1))) / 2)


def _fresh_times(recording: Recording) -> Iterator[tuple[float, float]]:
    """Of each event that shows a new transition of a condition: its time in the topic, and the transition's."""
    for step in recording.steps:
        known: dict[str, set[str]] = {}
        for event in step.events or ():
            obj = event.get("object") or {}
            name = (obj.get("metadata") or {}).get("name", "")
            rows = (obj.get("status") or {}).get("conditions") if isinstance(obj.get("status"), dict) else None
            times = {each["lastTransitionTime"] for each in rows or () if each.get("lastTransitionTime")}
            if event["type"] == "MODIFIED" and name in known:
                for text in times - known[name]:
                    yield event["t"], datetime.fromisoformat(text).timestamp()
            known[name] = known.get(name, set()) | times
