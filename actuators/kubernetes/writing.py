"""The one way to write: the server tries it first, then it is written.

Each write names the uid of its object and the epoch of its controller. A write that depends on the read object names
the resourceVersion too, so that a write of somebody else in between is noticed and the step is decided again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from actuators.kubernetes.api import APPLY, KINDS, MERGE, Answer, Api, Obj, Ref, Refusal
from autopilot.contract.annotations import EPOCH, MANAGER

CHECK_MANAGER = "gpu-autopilot-check"
"""Field manager of our admission check; `MANAGER` is that of everything else."""

DRY = {"dryRun": "All"}
TRIES = 4
"""Most repeats of a step because somebody wrote its object in between."""
AT_ONCE = 8
"""Simultaneous writes to the pods of one gang."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Stop:
    """Reason for a step not taken after its object was read."""

    reason: str
    done: bool = False  # nothing is left to do
    refusal: Refusal = Refusal.INVALID


Decide = Callable[[Obj], Obj | Stop]
"""From the object as it is now: a merge patch or the fields to apply, or the reason for none.

A failed test of a JSON patch cannot be told from a malformed one (both are 422), so no JSON patches are used.
"""


class Writer:
    """Writes of one controller."""

    def __init__(self, api: Api) -> None:
        self.api, self.written = api, 0
        """`written`: writes carried out, or possibly so; it only ever grows."""

    def change(self, ref: Ref, decide: Decide, epoch: int, *, subresource: str = "", dry: bool = False) -> Answer:
        """Read the object, decide, try the write, and write. The answer has the object after the write.

        A `Stop` with `done` is a success that writes nothing. `dry`: only try.
        """

        def send(patch: Obj, read: Obj, query: Mapping[str, str]) -> Answer:
            given = {**patch.get("metadata", {}), **_preconditions(read)}
            if subresource != "status":
                given["annotations"] = {**given.get("annotations", {}), EPOCH: str(epoch)}
            path = f"{ref.path}/{subresource}" if subresource else ref.path
            return self.api.patch(path, {**patch, "metadata": given}, MERGE, {**query, "fieldManager": MANAGER})

        return self._decided(ref, decide, send, dry=dry)

    def apply_status(self, ref: Ref, decide: Decide, manager: str) -> Answer:
        """Server-side apply of fields of the status; `decide` returns the status. The fields are taken over."""

        def send(status: Obj, read: Obj, query: Mapping[str, str]) -> Answer:
            given = {"name": ref.name, **_preconditions(read)}
            if ref.namespace:
                given["namespace"] = ref.namespace
            body = {"apiVersion": KINDS[ref.kind][0], "kind": ref.kind, "metadata": given, "status": status}
            return self.api.patch(
                f"{ref.path}/status", body, APPLY, {**query, "fieldManager": manager, "force": "true"}
            )

        return self._decided(ref, decide, send)

    def _decided(
        self, ref: Ref, decide: Decide, send: Callable[[Obj, Obj, Mapping[str, str]], Answer], *, dry: bool = False
    ) -> Answer:
        """Read, decide, try and write; again while somebody writes in between."""
        answer = Answer()
        for _ in range(TRIES):
            read = self.api.read(ref)
            if not read.ok:
                return read
            wanted = decide(read.body)
            if isinstance(wanted, Stop):
                refusal = None if wanted.done else wanted.refusal
                return Answer(read.body, refusal, wanted.reason, 200 if wanted.done else 0)
            answer = send(wanted, read.body, DRY)
            if answer.ok and not dry:
                answer = self._counted(send(wanted, read.body, {}))
            if answer.refusal != Refusal.CHANGED:
                return answer
        return answer

    def evict(self, ref: Ref, grace_s: float | None, epoch: int, *, dry: bool = False) -> Answer:
        """Ask for the eviction of a pod. Budgets are honoured. `dry`: only try."""
        options: Obj = {"preconditions": {"uid": ref.uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = max(round(grace_s), 1)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": ref.name, "namespace": ref.namespace, "annotations": {EPOCH: str(epoch)}},
            "deleteOptions": options,
        }
        trial = {**body, "deleteOptions": {**options, "dryRun": ["All"]}}
        tried = self.api.post(f"{ref.path}/eviction", trial, DRY)
        return tried if dry or not tried.ok else self._counted(self.api.post(f"{ref.path}/eviction", body))

    def create(self, path: str, body: Obj) -> Answer:
        """Create an object of our own."""
        query = {"fieldManager": MANAGER}
        tried = self.api.post(path, body, {**query, **DRY})
        return self._counted(self.api.post(path, body, query)) if tried.ok else tried

    def delete(self, path: str, options: Obj) -> Answer:
        """Delete an object of our own, exactly as `options` name it."""
        tried = self.api.delete(path, {**options, "dryRun": ["All"]}, DRY)
        return self._counted(self.api.delete(path, options)) if tried.ok else tried

    def _counted(self, answer: Answer) -> Answer:
        self.written += answer.ok or answer.refusal == Refusal.UNREACHABLE
        return answer


def _preconditions(read: Obj) -> dict[str, str]:
    """The server refuses the write to another object, or to one written since it was read."""
    meta = read["metadata"]
    return {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}


def each(items: Iterable[T], act: Callable[[T], R]) -> list[R]:
    """`act` on all items, several at a time, in their order."""
    known = list(items)
    if len(known) < 2:
        return [act(item) for item in known]
    with ThreadPoolExecutor(min(AT_ONCE, len(known))) as pool:
        return list(pool.map(act, known))
