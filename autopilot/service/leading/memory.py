"""The memory of the controller in ConfigMaps, so that the next leader knows the actions of this one.

One ConfigMap is the index: it states the fence, the tick and the digest. A memory that fits is in the index itself, a
larger one in further ConfigMaps named by the index. There are two sets of these, used in turn: the index is switched
after the new set is whole. Every write is over a version that this leader has read, so an earlier leader cannot write.

Before the effects of a tick leave, their memory is in the cluster. A memory with changes in counters only is written
every `EVERY_S`: see `COUNTERS`.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Protocol, get_type_hints

import msgspec

from autopilot.contract.notes import read_record
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.kube.cluster_api import Answer
from autopilot.readiness.manifest import MEMORY_MAP, MEMORY_PARTS, MEMORY_SETS
from autopilot.records.memory import FileMemoryStore, memory_text, read_memory_text
from autopilot.service.leading.elector import Requests
from autopilot.service.leading.lease import LABELS, text_in

SCHEMA = "gpu-autopilot/cluster-memory/1"
INDEX, MOST_SHARDS = MEMORY_MAP, MEMORY_PARTS
EPOCH = "gpu-autopilot.io/epoch"
SHARD_BYTES = 700 << 10
"""Before base64. A ConfigMap holds 1 MiB."""
EVERY_S = 60.0
_A, _B = MEMORY_SETS
OTHER = {_A: _B, _B: _A, "": _A}
NOT_FOUND, CONFLICT = 404, 409

COUNTERS = frozenset(
    {
        "tick",
        "now_s",
        "wake_at_s",
        "idle",
        "intake",
        "people.open_proposals",
        "plan.conditions",
        "plan.proposed_since_s",
        "replicas",
        "spending",
        "trust.promises",
        "use",
    }
)
"""Slices and fields that move at every tick. The next leader goes on from values at most `EVERY_S` old: dwell times and
measured use restart there, and no effect depends on them, because each tick with effects changes other fields too."""


def _paths() -> Iterator[str]:
    """Every field of a memory outside of its slices, and every field of a slice as "slice.field"."""
    for name, kind in get_type_hints(ControllerMemory).items():
        yield from (f"{name}.{each.name}" for each in fields(kind)) if is_dataclass(kind) else (name,)


ESSENTIAL = tuple(path for path in _paths() if not {path, path.partition(".")[0]} & COUNTERS)


class Local(Protocol):
    """The copy on the disk of this process (port `MemoryStore`)."""

    def load(self) -> ControllerMemory | None:
        """The last saved memory."""
        ...

    def save(self, memory: ControllerMemory) -> None:
        """Keep it."""
        ...


@dataclass(frozen=True, slots=True)
class _Index:
    """Content of the index. `part`: the set of its shards; "" for a memory in the index itself."""

    epoch: int = 0
    tick: int = -1
    digest: str = ""
    part: str = ""
    shards: int = 0

    @classmethod
    def of(cls, document: Mapping[str, Any], source: str) -> _Index:
        """Read it. Raises `InputError`."""
        try:
            content = read_record(document["data"]["index.json"])
            schema = content.pop("schema")
            index = msgspec.convert(content, cls)
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise InputError(f"{source}: it is not a memory of the controller ({error}); {_fix(source)}") from error
        if schema != SCHEMA:
            raise InputError(f"{source}: its schema is {schema!r}, this version reads {SCHEMA!r}; {_fix(source)}")
        return index


def _fix(source: str) -> str:
    return (
        f"restore it from a backup, or delete {source} to start with the memory on the disk of the next leader, or an "
        "empty one (dwell timers and budgets restart)"
    )


class ClusterMemory:
    """Memory of the leader (port `MemoryStore`). The loop alone calls it."""

    def __init__(
        self,
        api: Requests,
        namespace: str,
        local: Local | FileMemoryStore,
        monotonic_s: Callable[[], float] = time.monotonic,
        every_s: float = EVERY_S,
    ) -> None:
        self._api, self._local, self._monotonic_s, self._every_s = api, local, monotonic_s, every_s
        self._parent = f"/api/v1/namespaces/{namespace}/configmaps"
        self._shown = f"ConfigMap {namespace}/{INDEX}"
        self._namespace = namespace
        self.problem = "the memory in the cluster is not claimed"
        """Reason for a last decision absent from the cluster; "" for none. Until then nothing is sent."""
        self._fence = 0
        self._index, self._version = _Index(), ""
        self._memory: ControllerMemory | None = None
        self._written: ControllerMemory | None = None  # as it is in the cluster
        self._written_s = float("-inf")
        self.writes, self.bytes = 0, 0  # written so far; size of the last one

    def known_fence(self) -> int:
        """The highest fence known to the cluster or the disk. Raises `OSError` without an answer of the cluster."""
        found = self._local.load()
        local = found.fence if found is not None else 0
        answer = self._api.get(f"{self._parent}/{INDEX}")
        if answer.status == NOT_FOUND:
            return local
        if answer.status != 200:
            raise OSError(f"{self._shown}: {answer.reason}")
        return max(_Index.of(answer.document, self._shown).epoch, local)

    def claim(self, fence: int) -> str:
        """Take the memory over for a term: read it, and mark it so that no earlier leader can write it any more.

        Returns the reason for a failure, "" for a success. Raises `InputError` for an untrustworthy memory.
        """
        self.problem = "the memory in the cluster is not claimed"
        answer = self._api.get(f"{self._parent}/{INDEX}")
        document: Mapping[str, Any] = {}
        found: ControllerMemory | None = None
        self._index, self._version = _Index(), ""
        if answer.status == 200:
            document = answer.document
            self._index, self._version = _Index.of(document, self._shown), _version(answer)
            if self._index.epoch > fence:
                return f"{self._shown}: a later leader with fence {self._index.epoch} has it"
            loaded = self._read(document)
            if isinstance(loaded, str):
                return loaded
            found = loaded
        elif answer.status != NOT_FOUND:
            return f"{self._shown}: {answer.reason}"
        self._fence = fence
        local = self._local.load()
        if local is not None and (found is None or (local.fence, local.tick) > (found.fence, found.tick)):
            found = local  # this process decided it, and could not write it before it ended
        self._memory, self._written = found, None
        self._written_s = float("-inf")
        claimed = _Index(fence, self._index.tick, self._index.digest, self._index.part, self._index.shards)
        problem = self._put_index(claimed, dict(document.get("binaryData") or {}))
        self.problem = problem
        return problem

    def load(self) -> ControllerMemory | None:
        """The claimed memory; before the claim, the one on the disk."""
        return self._memory if self._fence else self._local.load()

    def save(self, memory: ControllerMemory) -> None:
        """Keep it on the disk, and in the cluster if that is due. `problem`: the reason for a failed write there."""
        self._local.save(memory)
        self._memory = memory
        if not self._fence:
            return
        due = self._monotonic_s() - self._written_s >= self._every_s
        if due or self.problem or self._written is None or _differ(self._written, memory):
            self.problem = self._write(memory)

    def flush(self) -> None:
        """Write the last counters at the end of a term."""
        if self._fence and self._memory is not None and self._memory is not self._written and not self.problem:
            self.problem = self._write(self._memory)

    def _write(self, memory: ControllerMemory) -> str:
        packed = zlib.compress(memory_text(memory).encode(), 6)
        digest = blake2b(packed, digest_size=8).hexdigest()
        pieces = [packed[at : at + SHARD_BYTES] for at in range(0, len(packed), SHARD_BYTES)]
        if len(pieces) > MOST_SHARDS:
            return f"{self._shown}: the memory has {len(packed) >> 20} MiB packed; the most is {MOST_SHARDS} ConfigMaps"
        part = "" if len(pieces) == 1 else OTHER[self._index.part]
        for number, piece in enumerate(pieces if part else ()):
            problem = self._put_shard(f"{INDEX}-{part}-{number}", piece)
            if problem:
                return problem
        index = _Index(self._fence, memory.tick, digest, part, len(pieces))
        problem = self._put_index(index, {} if part else {"memory": base64.b64encode(packed).decode()})
        if not problem:
            self._written, self._written_s = memory, self._monotonic_s()
            self.writes, self.bytes = self.writes + 1, len(packed)
        return problem

    def _read(self, document: Mapping[str, Any]) -> ControllerMemory | str | None:
        """The memory named by the index, None for an index without one; a text if it is unreadable now."""
        index = self._index
        if not index.digest:
            return None
        texts = [(document.get("binaryData") or {}).get("memory", "")]
        if index.part:
            texts = []
            for number in range(index.shards):
                answer = self._api.get(f"{self._parent}/{INDEX}-{index.part}-{number}")
                if answer.status not in {200, NOT_FOUND}:
                    return f"{self._shown}: a part cannot be read: {answer.reason}"
                texts.append((answer.document.get("binaryData") or {}).get("memory", ""))
        try:
            packed = b"".join(base64.b64decode(each) for each in texts)
        except (ValueError, TypeError):
            packed = b""
        if blake2b(packed, digest_size=8).hexdigest() != index.digest:
            raise InputError(f"{self._shown}: the digest does not match its content; {_fix(self._shown)}")
        return read_memory_text(zlib.decompress(packed).decode(), self._shown)

    def _put_index(self, index: _Index, binary: dict[str, str]) -> str:
        """Write the index over the version known to this leader; returns the reason for a failure, "" for a success."""
        content = {"schema": SCHEMA, **{each.name: getattr(index, each.name) for each in fields(_Index)}}
        body = self._map(INDEX, binary, {"index.json": json.dumps(content)})
        answer = self._put(INDEX, body, self._version)
        if answer.status == CONFLICT and self._still_ours():  # a lost answer, or a label set by a person
            answer = self._put(INDEX, body, self._version)
        if answer.status not in {200, 201}:
            return f"{self._shown}: it cannot be written: {answer.reason}"
        self._index, self._version = index, _version(answer)
        return ""

    def _still_ours(self) -> bool:
        """True if the index in the cluster has no other leader; learns its version."""
        answer = self._api.get(f"{self._parent}/{INDEX}")
        if answer.status == NOT_FOUND:
            self._version = ""
            return True
        if answer.status != 200 or _Index.of(answer.document, self._shown).epoch > self._fence:
            return False
        self._version = _version(answer)
        return True

    def _put_shard(self, name: str, piece: bytes) -> str:
        """Write a shard over the present version. An earlier leader writing in between makes a conflict."""
        there = self._api.get(f"{self._parent}/{name}")
        if there.status not in {200, NOT_FOUND}:
            return f"ConfigMap {self._namespace}/{name}: {there.reason}"
        body = self._map(name, {"memory": base64.b64encode(piece).decode()}, {})
        answer = self._put(name, body, _version(there) if there.status == 200 else "")
        if answer.status not in {200, 201}:
            return f"ConfigMap {self._namespace}/{name}: it cannot be written: {answer.reason}"
        return ""

    def _put(self, name: str, body: dict[str, Any], version: str) -> Answer:
        if not version:
            return self._api.post(self._parent, body)
        body["metadata"]["resourceVersion"] = version
        answer = self._api.put(f"{self._parent}/{name}", body)
        if answer.status == NOT_FOUND:  # somebody deleted it
            del body["metadata"]["resourceVersion"]
            return self._api.post(self._parent, body)
        return answer

    def _map(self, name: str, binary: dict[str, str], data: dict[str, str]) -> dict[str, Any]:
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": LABELS,
            "annotations": {EPOCH: str(self._fence)},
        }
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "binaryData": binary}


def _version(answer: Answer) -> str:
    return text_in(answer.document, "resourceVersion")


def _differ(one: ControllerMemory, other: ControllerMemory) -> bool:
    """True if more than counters changed. Tuples compare a NaN with itself as equal."""
    changed = (path for path in ESSENTIAL if (attrgetter(path)(one),) != (attrgetter(path)(other),))
    return any(path != "plan.reservations" or _held(one) != _held(other) for path in changed)


def _held(memory: ControllerMemory) -> list[tuple[object, ...]]:
    """The reservations without their times, planned anew by every tick."""
    return [
        (each.uid, each.workload, each.nodes, each.gpus, each.firm, each.since_s) for each in memory.plan.reservations
    ]
