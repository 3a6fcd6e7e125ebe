"""Plays a recording on a server of its own and compares every step."""

from __future__ import annotations

import base64
import copy
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from apiserver.errors import StatusError
from apiserver.requests import Response, WatchStream
from apiserver.routing import route
from apiserver.timeline import US
from apiserver.users import ADMIN
from tests.kube.replay.actions import API_SERVER, actions_agenda
from tests.kube.replay.aliases import Aliases
from tests.kube.replay.commands import play as play_command
from tests.kube.replay.commands import prepare, requests_of
from tests.kube.replay.compare import Comparison
from tests.kube.replay.described import described
from tests.kube.replay.hidden import HiddenWrite, hidden_writes
from tests.kube.replay.kueue_play import kueue_agenda
from tests.kube.replay.people import People
from tests.kube.replay.recording import Recording, Step, sightings
from tests.kube.replay.repeated import moved, repetitions
from tests.kube.replay.world import BEFORE_S, kueue_of, send, world
from tests.kube.replay.worlds import PreparedWrite, prepared

Obj = dict[str, Any]
COMMAND_S = 1.0  # between two commands
LATE_S = 1.0  # an event may come this much later than recorded
VERSION = "resourceVersion"
NEAR = 1000  # a version that is this much newer than those seen was never given


@dataclass(frozen=True)
class Row:
    """The outcome of one step."""

    topic: str
    name: str
    passed: bool
    difference: str


@dataclass
class _Watch:
    step: Step
    stream: WatchStream | Response
    events: list[tuple[str, Obj]]


class Player:
    """Plays one recording."""

    def __init__(self, recording: Recording, worlds: list[Obj]) -> None:
        self.recording = recording
        self.server = world(recording)
        self.prepared = prepared(recording, worlds)
        self.kueue = kueue_of(self.server, recording)
        self.start_us = self.server.timeline.now_us + round(BEFORE_S * US)
        self.versions: dict[int, int] = {}  # recorded resourceVersion: ours
        self.shown = [(each.t_s, int(each.obj["metadata"].get(VERSION) or 0)) for each in sightings(recording)]
        self.aliases = Aliases(recording)
        self.aliases.attach(self.server)
        self.people = People(recording, self.server)
        self.rows: dict[int, Row] = {}
        self.hidden_failures: list[str] = []
        self.watches: list[_Watch] = []
        self.server.timeline.on_error = lambda error: self.hidden_failures.append(f"a controller failed: {error!r}")

    def play(self) -> list[Row]:
        """Every step, in order of time; the rows in order of the file."""
        agenda: list[tuple[float, int, Callable[[], None]]] = [
            (write.t_s, -1, partial(self._hide, write)) for write in hidden_writes(self.recording, self.prepared)
        ]
        agenda += [(write.t_s, -2, partial(self._hide, write)) for write in self.people.writes()]
        agenda += [(write.t_s, -2, partial(self._prepare, write)) for write in self.prepared.writes]
        agenda += actions_agenda(self.recording, self.server, self.kueue)
        agenda += kueue_agenda(self.recording, self.server, self.kueue, self.aliases, self.hidden_failures)
        for step in self.recording.steps:
            if step.broken:
                self._row(step, step.broken)
            elif step.request.get("method"):
                agenda.append((step.t_s, step.index, partial(self._try, step)))
                agenda += [
                    (step.t_s + passed_s, step.index, partial(self._again, step, passed_s))
                    for passed_s in repetitions(step)
                ]
            elif not requests_of(step):
                self._row(step, "is no single request: this file format is not replayed")
        if any(requests_of(step) for step in self.recording.steps):
            self._commands()
        for t_s, _, action in sorted(agenda, key=lambda each: each[:2]):
            self._advance(t_s)
            action()
        last_s = max((e["t"] for s in self.recording.steps for e in s.events or ()), default=0.0)
        self._advance(last_s + LATE_S)
        for watch in self.watches:
            try:
                self._judge_watch(watch)
            except Exception as error:  # noqa: BLE001 - the other watches are judged
                self._row(watch.step, f"not judged: {error!r}")
        return [self.rows[index] for index in sorted(self.rows)]

    def _commands(self) -> None:
        """Steps that are command lines, a second apart."""
        prepare(self.recording, self.server)
        for step in self.recording.steps:
            self.server.timeline.run_for(COMMAND_S)
            self._row(step, play_command(step, self.server) if requests_of(step) else "")

    def _advance(self, t_s: float) -> None:
        timeline = self.server.timeline
        timeline.run_until_us(max(self.start_us + round(t_s * US), timeline.now_us))

    def _row(self, step: Step, difference: str) -> None:
        self.rows[step.index] = Row(self.recording.topic, step.name, not difference, difference)

    def _hide(self, write: HiddenWrite) -> None:
        kind = self.server.kinds.of(write.api_version, write.kind)
        if kind is None:
            self.hidden_failures.append(f"{write.t_s:.3f} {write.kind} {write.name}: kind not served")
            return
        client = self.server.client(ADMIN, "recorder")
        try:
            if write.method == "POST":
                client.create(kind.storage, write.body)
            elif write.method == "DELETE":
                client.delete(kind.storage, write.namespace, write.name, {"propagationPolicy": "Background"})
            else:
                client.patch(kind.storage, write.namespace, write.name, write.body)
            if write.version:
                self.versions[write.version] = self.server.store.version
        except StatusError as error:
            self.hidden_failures.append(f"{write.t_s:.3f} {write.method} {write.kind} {write.name}: {error}")

    def _prepare(self, write: PreparedWrite) -> None:
        metadata = write.obj["metadata"]
        kind = self.server.kinds.of(write.obj["apiVersion"], write.obj["kind"])
        if kind is None:
            self.hidden_failures.append(f"{write.t_s:.3f} {write.obj['kind']} {metadata['name']}: kind not served")
            return
        client, name, namespace = (
            self.server.client(ADMIN, "recorder"),
            metadata["name"],
            metadata.get("namespace", ""),
        )
        try:
            if write.method == "POST" and not write.subresource:
                client.create(kind.storage, copy.deepcopy(write.obj))
            elif write.method == "POST":
                client.call(kind.storage, namespace, name, write.subresource, write.body)
            elif write.method == "DELETE":
                client.delete(kind.storage, namespace, name, write.body)
            else:
                client.patch(kind.storage, namespace, name, write.body, write.subresource)
        except StatusError as error:
            self.hidden_failures.append(f"{write.t_s:.3f} {write.method} {write.obj['kind']} {name}: {error}")

    def _try(self, step: Step) -> None:
        """Play a step; one that the replay cannot play, or that breaks the server, has failed."""
        try:
            self._step(step)
        except Exception as error:  # noqa: BLE001 - the other steps are played
            self._row(step, f"not played: {error!r}")

    def _step(self, step: Step) -> None:
        if self._is_cut_off(step):
            self._row(step, "" if step.status == 0 else f"status: expected {step.status}, got no answer")
            return
        request = send(self.people, self._translated(step))
        answer = self.server.handle(request)
        if step.events is not None:
            self.watches.append(_Watch(step, answer, []))
            return
        if isinstance(answer, WatchStream):
            self._row(step, "a watch was opened where none was recorded")
            return
        if answer.status != step.status:
            shown = json.dumps(answer.plain())[:600]
            self._row(step, f"status: expected {step.status}, got {answer.status} {shown}")
            return
        if not answer.status:
            self._row(step, "")
            return
        got = json.loads(b"".join(answer.chunks())) if not isinstance(answer.body, str) else answer.body
        if step.trimmed and isinstance(got, dict) and _is_part(step.body, got):
            got = got["status"]
        self._learn(step.body, got)
        comparison = self._comparison(step, step.volatile)
        comparison.same(step.body, got)
        difference = comparison.difference
        for name in ("retry-after", "warning"):
            if not difference and step.headers.get(name) != answer.headers.get(name):
                difference = f"header {name}: expected {step.headers.get(name)}, got {answer.headers.get(name)}"
        self._row(step, difference)

    def _is_cut_off(self, step: Step) -> bool:
        """Whether the server was killed while it worked on a request."""
        kills = [each for each in self.recording.actions if each.process == API_SERVER and "SIGKILL" in each.what]
        return step.events is None and any(step.t_s <= each.t_s < step.t_s + step.latency_s for each in kills)

    def _again(self, step: Step, passed_s: float) -> None:
        """Send the request of a step once more, with the times in it moved on; its answer has the same status."""
        if step.index in self.rows and not self.rows[step.index].passed:
            return
        body = moved(step.request.get("body"), passed_s)
        request = send(self.people, self._translated(replace(step, request=step.request | {"body": body})))
        answer = self.server.handle(request)
        if answer.status != step.status:
            self._row(step, f"status {passed_s:.3f} s later: expected {step.status}, got {answer.status}")

    def _comparison(self, step: Step, volatile: tuple[str, ...]) -> Comparison:
        return Comparison(volatile, self.aliases, trimmed=step.trimmed, keeps_managed_fields=step.keeps_managed_fields)

    # what only the day of the recording knows

    def _translated(self, step: Step) -> Obj:
        """The request with our names and versions in place of the recorded ones."""
        text = json.dumps(step.request)
        for name, ours in self.aliases.items():
            text = text.replace(name, ours)
        request: Obj = json.loads(text)
        query = dict(request.get("query") or {})
        if query.get(VERSION, "").isdigit():
            query[VERSION] = str(self._version(int(query[VERSION]), step.t_s))
        if "continue" in query:
            query["continue"] = self._token(query["continue"])
        body = request.get("body")
        for part in (body, body.get("preconditions") if isinstance(body, dict) else None):
            holder = part.get("metadata") if isinstance(part, dict) and "metadata" in part else part
            if isinstance(holder, dict) and str(holder.get(VERSION, "")).isdigit():
                holder[VERSION] = self._stated(int(holder[VERSION]), step)
        if isinstance(body, str):
            body = described(body, step)
        return request | {"query": query, "body": body}

    def _stated(self, recorded: int, step: Step) -> str:
        """Our version for one that a body states. One newer than all shown comes from a read that is not recorded."""
        at = route(step.request["path"])
        kind = self.server.kinds.find(at.group, at.version, at.plural) if at is not None else None
        if recorded in self.versions or at is None or kind is None or recorded < max(self.versions, default=0):
            return str(self.versions.get(recorded, recorded))
        held = self.server.store.get(kind.storage, at.namespace, self.aliases.get(at.name, at.name))
        return str(held["metadata"][VERSION]) if held is not None else str(recorded)

    def _version(self, recorded: int, t_s: float = 0.0) -> int:
        """Our version that stands for a recorded one; one that is newer than all seen by then is our newest."""
        newest = max((version for at_s, version in self.shown if at_s <= t_s), default=0)
        if newest and newest < recorded <= newest + NEAR:
            return self.server.store.version
        if recorded <= 1 or not self.versions or recorded > max(self.versions) + 100_000:
            return recorded
        known = [version for version in self.versions if version <= recorded]
        return self.versions[max(known)] if known else recorded

    def _token(self, token: str) -> str:
        try:
            state = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        except ValueError:
            return token
        state["rv"] = self._version(state["rv"])
        text = json.dumps(state, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _learn(self, expected: Any, got: Any) -> None:
        """Which of our versions and generated names stand for which recorded ones."""
        if isinstance(expected, dict) and isinstance(got, dict):
            recorded, ours = expected.get("metadata"), got.get("metadata")
            if isinstance(recorded, dict) and isinstance(ours, dict):
                self._learn_metadata(recorded, ours)
            for name in expected.keys() & got.keys() - {"metadata"}:
                self._learn(expected[name], got[name])
        elif isinstance(expected, list) and isinstance(got, list):
            for a, b in zip(expected, got, strict=False):
                self._learn(a, b)
        elif isinstance(expected, str) and isinstance(got, str) and expected != got and same_stem(expected, got):
            self.aliases.learn(expected, got)

    def _learn_metadata(self, recorded: Obj, ours: Obj) -> None:
        if str(recorded.get(VERSION, "")).isdigit() and str(ours.get(VERSION, "")).isdigit():
            self.versions[int(recorded[VERSION])] = int(ours[VERSION])
        a, b = recorded.get("name"), ours.get("name")
        if a and b and a != b and same_stem(a, b):
            self.aliases.learn(a, b)

    # watches

    def _judge_watch(self, watch: _Watch) -> None:
        step, stream = watch.step, watch.stream
        if isinstance(stream, Response):
            self._row(step, f"expected a watch, got {stream.status} {json.dumps(stream.plain())[:300]}")
            return
        recorded = [event for event in step.events or () if "type" in event]
        end_s = recorded[-1]["t"] if recorded else step.t_s
        got: list[tuple[float, str, Obj]] = [
            ((event.t_us - self.start_us) / US, event.type, json.loads(event.encoded())) for event in stream.take()
        ]
        self._row(step, self._events_differ(step, recorded, got, end_s))

    def _events_differ(self, step: Step, recorded: list[Obj], got: list[tuple[float, str, Obj]], end_s: float) -> str:
        """Events are compared for each object in order: the order across objects is that of the day's latencies."""
        expected_of: dict[str, list[Obj]] = defaultdict(list)
        got_of: dict[str, list[tuple[float, str, Obj]]] = defaultdict(list)
        for event in recorded:
            expected_of[self.aliases.get(_name(event["object"]), _name(event["object"]))].append(event)
        for t_s, change, obj in got:
            got_of[_name(obj)].append((t_s, change, obj))
        free = [name for name in got_of if name not in expected_of]
        for name in [name for name in expected_of if name not in got_of]:
            ours_too = next((each for each in free if same_stem(name, each)), "")
            if ours_too:  # a generated name that no answer showed: the first created is the first created
                free.remove(ours_too)
                self.aliases[name] = ours_too
                expected_of[ours_too] = expected_of.pop(name)
        for name in sorted(expected_of.keys() | got_of.keys()):
            expected, ours = expected_of.get(name, []), got_of.get(name, [])
            if len(ours) > len(expected):
                ours = ours[: len(expected)] + [each for each in ours[len(expected) :] if each[0] <= end_s]
            if len(expected) != len(ours):
                shown = [each["type"] for each in expected], [each[1] for each in ours]
                return f"events of {name or 'bookmarks'}: expected {shown[0]}, got {shown[1]}"
            for number, (event, (_, change, obj)) in enumerate(zip(expected, ours, strict=True)):
                if event["type"] != change:
                    return f"event {number} of {name}: expected {event['type']}, got {change}"
                self._learn(event["object"], obj)
                comparison = self._comparison(step, _in_events(step.volatile))
                if not comparison.same(event["object"], obj):
                    return f"event {number} ({change}) of {name}: {comparison.difference}"
        return ""


def _is_part(recorded: Any, got: Obj) -> bool:
    """Whether only the status of an object was kept."""
    whole = {"kind", "apiVersion", "metadata", "spec", "status", "items", "data"}
    return isinstance(recorded, dict) and "status" in got and not whole & recorded.keys()


def _in_events(volatile: tuple[str, ...]) -> tuple[str, ...]:
    """Pointers into events as pointers into one object."""
    return tuple(f"/{pointer.split('/', 4)[4]}" for pointer in volatile if pointer.startswith("/events/"))


def _name(obj: Obj) -> str:
    """Which object an event is about: "" for bookmarks and errors."""
    if isinstance(obj.get("rows"), list) and obj["rows"]:
        obj = obj["rows"][0].get("object") or {}
    metadata = obj.get("metadata") or {}
    return str(metadata.get("name", ""))


def same_stem(recorded: str, ours: str) -> bool:
    """Whether two names differ only in the suffix that the server draws."""
    stem, _, suffix = recorded.rpartition("-")
    other, _, drawn = ours.rpartition("-")
    return bool(stem) and stem == other and len(suffix) == len(drawn) == 5
