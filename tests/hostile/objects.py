"""Objects of a cluster that say anything, beside honest work whose rows and decisions may not change.

The fields come from the types of every kind that is listed (`collectors.kubernetes.kinds`), and the names of labels and
annotations from the text of the code that reads them: a new field and a new name are covered by themselves.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from actuators.kubernetes.effects import RECORDS, fields_of
from autopilot.contract import PREFIX, contract_fields
from autopilot.contract.documents import parsed
from autopilot.core.intake.assemble import assemble
from autopilot.core.model.records import Batch
from collectors.kubernetes.kinds import KINDS, Kind
from tests.kits.core_world import AUTO, decide, observe
from tests.kits.kube_api import PLURAL
from tests.kits.kube_objects import kueue, meta, node, pod, stamp, workload
from tests.unit.collectors.kubernetes.view import Seen

Json = dict[str, Any]
Path_ = tuple[str | int, ...]
READERS = ("collectors", "actuators", "autopilot/contract", "autopilot/playground", "autopilot/service/watchdog")
"""Folders whose texts name the labels and annotations that are read."""

_NAME = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+/[A-Za-z0-9._-]*")
DEEP = "<deep>"
"""Stands for JSON that is nested 3,000 levels deep, which `json` itself cannot write."""
DIGITS = "<digits>"
"""Stands for a whole number of 5,000 digits."""
LONG = 256 * 1024
MANY, SHORT = 10_000, 100
TEXTS: tuple[str, ...] = (
    *("", "x", "-1", "1" + "0" * 20, "NaN", "Infinity", "1e999", "true", "null", "[]", "{}", "\x1b[31m\x00\n\u202e"),
    *("[" * 3000, '{"a":' * 3000, "x" * LONG, "9" * 5000),
    *('{"id": "a", "selector": 7, "replicas": 1e20, "until": NaN}', '{"uid": [], "gpus": {"0": 7}, "id": {}}'),
    json.dumps({"id": "a", "replicas": 1, "until": 9e9, "owner": 10**20, "ours": 1, "generation": 1, "revision": ""}),
    json.dumps({"id": "a", "replicas": 1, "until": 9e9, "way": "scale", "owner": 10**20, "ours": 1}),
    json.dumps(dict.fromkeys(map(str, range(1000)), 1)),
)
ENTRIES, KEYS = "<entries>", "<keys>"
"""Stand for 10,000 entries of a list, or keys of a map, like what was there."""
QUANTITIES = ("3000000000", "9223372036854775807", "9E", "-1", "1e99", "NaN", "0x7", "1" * 400)
PLAIN: tuple[Any, ...] = (7, "x", [], {}, True, None, 1.5, DEEP, DIGITS, 10**20, -1, 2**31, 2**63)
VALUES = (*PLAIN, *TEXTS, *QUANTITIES, KEYS, ENTRIES)


@dataclass(frozen=True)
class Case:
    """One object and what was done to it."""

    what: str
    body: bytes
    kind: str
    uid: str


# --- what is read ---------------------------------------------------------------------------------


@lru_cache
def names() -> tuple[str, ...]:
    """The names of labels and annotations that the code reads."""
    found = {PREFIX + each.key for each in contract_fields()}
    for folder in READERS:
        for path in sorted(Path(folder).rglob("*.py")):
            for each in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    found |= {each.value} if _NAME.fullmatch(each.value) else set()
                if isinstance(each, ast.BinOp) and isinstance(each.left, ast.Name) and each.left.id == "PREFIX":
                    right = each.right
                    found |= {f"{PREFIX}{right.value!s}"} if isinstance(right, ast.Constant) else set()
    return tuple(sorted(name for name in found if not name.endswith("/")))


def sample(kind: Any, depth: int = 0) -> Any:
    """A value of a type, with every field."""
    origin = get_origin(kind)
    if origin is Annotated:
        return sample(get_args(kind)[0], depth)
    if origin in {Union, UnionType}:
        return sample(next(each for each in get_args(kind) if each is not NoneType), depth)
    if origin in {list, tuple}:
        return [sample(get_args(kind)[0], depth + 1)]
    if origin is dict:
        return {"k": sample(get_args(kind)[1], depth + 1)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return {each.encode_name: sample(hints[each.name], depth + 1) for each in msgspec.structs.fields(kind)}
    plain: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: False, datetime: stamp(), msgspec.Raw: {}}
    return plain.get(kind, "1")


def paths(found: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every place in a document."""
    if at:
        yield at
    if isinstance(found, dict | list):
        for key, each in found.items() if isinstance(found, dict) else enumerate(found):
            yield from paths(each, (*at, key))


@lru_cache
def base(kind: Kind) -> str:
    """An object of a kind, with every field that is read, as JSON: filled in, and alive where there is one."""
    found = sample(kind.type)
    found["metadata"] |= meta("bad", "bad" if kind.namespaced else "", uid="uid-bad", labels={}, annotations={})
    found["metadata"].pop("deletionTimestamp", None)
    found["metadata"]["ownerReferences"] = []
    name = next(name for name, plural in PLURAL.items() if plural == kind.name)
    real = {"Pod": pod("bad", 1, namespace="bad"), "Node": node("bad"), "Workload": workload("bad", 1, namespace="bad")}
    found = over(found, real.get(name, {}))
    return json.dumps({**found, "kind": name})


def over(under: Any, real: Any) -> Any:
    """A document with the values of another one, as far as that has any."""
    if isinstance(under, dict) and isinstance(real, dict):
        return {key: over(under.get(key), real[key]) if key in real else under[key] for key in {**under, **real}}
    return real


def keys_read(*places: str) -> dict[str, str]:
    """The names of fields that the code in these files and folders reads from documents, with a file for each."""
    found: dict[str, str] = {}
    for place in map(Path, places):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for each in ast.walk(ast.parse(path.read_text("utf-8"))):
                key: ast.expr | None = None
                if isinstance(each, ast.Subscript):
                    key = each.slice
                elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "get":
                    key = next(iter(each.args), None)
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found[key.value] = path.name
    return found


def names_in(found: Any) -> set[str]:
    """The names of the fields of a document."""
    return {step for path in paths(found) for step in path if isinstance(step, str)}


# --- what is done to it ---------------------------------------------------------------------------


def hostile(number: int) -> Case:
    """The object with this number; the same one in every process."""
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    found: Json = json.loads(base(kind))
    uid = f"uid-bad-{number}"
    found["metadata"] |= {"name": f"bad-{number}", "uid": uid}
    told, body = spoiled(rng, found)
    return Case(f"{kind.title} {number}: {told}", body, kind.title, uid)


def spoiled(rng: random.Random, found: Json) -> tuple[str, bytes]:
    """What was done to an object, which keeps its uid, and its JSON."""
    uid = found["metadata"]["uid"]
    told = [change(rng, found) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if not isinstance(found.get("metadata"), dict):
        found["metadata"] = {}
    found["metadata"]["uid"] = uid
    body = json.dumps(found).replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)
    return "; ".join(told), body.replace(json.dumps(DIGITS), "9" * 5000).encode()


def change(rng: random.Random, found: Json) -> str:
    """Change one thing in an object; what it was."""
    data = found["metadata"] if isinstance(found.get("metadata"), dict) else {}
    if rng.random() < 0.4:
        name, text = rng.choice(names()), rng.choice(TEXTS)
        where = rng.choice(("labels", "annotations"))
        notes = data.get(where) if isinstance(data.get(where), dict) else {}
        data[where] = {**(notes or {}), name: text}
        return f"{where}[{name}] = {text[:30]!r}"
    if rng.random() < 0.05:
        own = {key: _short(data.get(key, "")) for key in ("name", "uid")} | {"kind": found["kind"], "controller": True}
        data["ownerReferences"] = [{**own} for _ in range(rng.choice((1, 2, MANY)))]
        return "it owns itself"
    kept = (("kind",), ("metadata", "resourceVersion"))
    at = rng.choice([each for each in paths(found) if each not in kept])
    place: Any = found
    for step in at[:-1]:
        place = place[step]
    old = place[at[-1]]
    value = deepcopy(rng.choice(VALUES))  # a later change may go into it
    value = _many(old, value) if value in (ENTRIES, KEYS) else value
    place[at[-1]] = value
    shown = value if value in (DEEP, DIGITS) else f"{type(value).__name__} {str(value)[:30]!r}"
    return f"{'.'.join(map(str, at))} = {shown}"


def _short(found: Any) -> Any:
    """The same where 10,000 of it are no more than a server takes; DEEP and DIGITS stand for long texts."""
    text = str(found)
    return "x" if len(text) >= SHORT or DEEP in text or DIGITS in text else found


def _many(old: Any, what: str) -> Any:
    """10,000 times what was there; a store of objects takes 1.5 MiB."""
    old = _short(old)
    if what == KEYS and isinstance(old, dict):
        return {f"k{each}": "1" for each in range(MANY)}
    one = json.dumps(next(iter(old), "x") if what == ENTRIES and isinstance(old, list) else old)
    return [json.loads(one) for _ in range(MANY)]


# --- honest work ----------------------------------------------------------------------------------


def honest() -> list[Json]:
    """Running and waiting work of every form, on nodes with room for all of it."""
    nodes = [node(f"n{each}") for each in range(8)]
    plain = [
        pod("runs", 4, node="n0", phase="Running", priority=5),
        pod("waits", 2, priority=5),
        pod("pinned", 1, priority=5, nodeSelector={"kubernetes.io/hostname": "n3"}),
    ]
    return [*nodes, *plain, *kueue(workload("queued", 2), workload("more", 8, count=2))]


@dataclass
class World:
    """Honest objects, hostile ones beside them, and what the controller makes of it."""

    seen: Seen = field(default_factory=lambda: Seen(*honest()))
    there: dict[str, Case] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """List everything."""
        self.seen.batch()

    def show(self, cases: Sequence[Case]) -> dict[str, Any]:
        """Rows and decisions of honest work, in words, with these objects and no other hostile ones."""
        self._replace(cases)
        problems = [each.problem for each in self.seen.cluster.health() if each.problem]  # no list lags behind
        return facts_of(self.seen.collector.collect(self.seen.now_s), self.seen.now_s) | {"problems": problems}

    def _replace(self, cases: Sequence[Case]) -> None:
        """The next events: the objects of before are deleted, and these are added."""
        scripts: dict[str, list[bytes | Exception]] = {}
        api = self.seen.api
        for case in [*self.there.values(), *cases]:
            api.version += 1
            gone = case.uid in self.there and case not in cases
            body = _versioned(case, api.version)
            event = b'{"type": "%s", "object": %s}' % (b"DELETED" if gone else b"ADDED", body)
            scripts.setdefault(_BY_TITLE[case.kind].name, []).append(event)
        self.there = {each.uid: each for each in cases}
        for name, events in scripts.items():
            api.scripts[name] = [events]
        self.seen.cluster.step_all()
        for each in cases:
            for text in _notes(each):
                fields_of(text)


_BY_TITLE = {each.title: each for each in KINDS}


def _notes(case: Case) -> list[str]:
    data = parsed(case.body)["metadata"].get("annotations")
    return [text for key in RECORDS if isinstance(data, dict) and isinstance(text := data.get(key), str)]


def _versioned(case: Case, version: int) -> bytes:
    """The object at a version; a version that is hostile itself stays."""
    return case.body.replace(b'"resourceVersion": "1"', b'"resourceVersion": "%d"' % version, 1)


def facts_of(batch: Batch, now_s: float) -> dict[str, Any]:
    """What is seen of honest objects and decided on them, in words."""
    if batch.work is None or not batch.work_list.complete:
        return {"blind": [gap.reason for gap in batch.gaps][:3]}
    snapshot = assemble([batch], now_s)[0]
    decision = decide(observe(snapshot, now_s), AUTO).decision
    found: dict[str, Any] = {"halted": decision.halted}
    for table, honest_name in ((snapshot.workloads, r"team/.+"), (snapshot.nodes, r"n\d")):
        columns = [each for each in type(table).__slots__ if each not in _CODES]
        for row, name in enumerate(table.id.tolist()):
            if re.fullmatch(honest_name, name):
                found[name] = {column: str(getattr(table, column)[row]) for column in columns}
    found["decided"] = sorted(
        f"{each.subject.name} {type(each.change).__name__} {each.accepted}"
        for each in decision.plan.proposals
        if each.subject.name.startswith("team/")
    )
    return found


_CODES = {"tenant", "queue", "selector", "prefers", "labels", "hints", "pool", "gpu_model", "first_gpu", "service"}
_CODES |= {"island", "leaf", "block", "zone", "mig_profile", "gpu_models"}
"""Columns whose numbers stand for names, and may differ."""


def differing(numbers: Sequence[int], world: World | None = None) -> list[str]:
    """The objects beside which honest work is not as without them, found by halving the batch."""
    alone = World().show(())
    return _bisected(world or World(), [hostile(each) for each in numbers], alone)


def _bisected(world: World, cases: Sequence[Case], alone: dict[str, Any]) -> list[str]:
    found = world.show(cases)
    if found == alone:
        return []
    if len(cases) == 1:
        wrong = {key: (alone.get(key), value) for key, value in found.items() if alone.get(key) != value}
        return [f"{cases[0].what} -> {str(wrong)[:1000]}"]
    half = len(cases) // 2
    each = [*_bisected(World(), cases[:half], alone), *_bisected(World(), cases[half:], alone)]
    return each or [f"{cases[0].what} ... {cases[-1].what}: only together"]
