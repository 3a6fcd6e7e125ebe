"""What levers share that change a whole node: its record while it is cordoned and empty, and its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from actuators.kubernetes.api import Answer, Obj, Ref, Refusal
from actuators.kubernetes.levers.base import Ended, Progress, Tools, Waiting, ended_by
from actuators.kubernetes.mig_node import holds_gpu
from actuators.kubernetes.objects import annotation
from actuators.kubernetes.writing import Stop
from autopilot.contract.annotations import EFFECT
from autopilot.contract.notes import read_record

SPREAD_S = 120.0
"""Time of the kubelets to bring a changed ConfigMap to their pods, which fail on an entry that they do not see yet."""


Record = TypeVar("Record")
"""A dataclass with the fields `lever` (its name) and `cordoned` (the node was open before), kept as JSON."""


def read(node: Obj, kind: type[Record], lever: str) -> Record | None:
    """The change of a lever on the node; None for none, for a record of another lever, and for any other text."""
    found = read_record(annotation(node, EFFECT))
    try:
        return msgspec.convert(found, kind) if found.get("lever") == lever else None
    except msgspec.ValidationError:
        return None


def text_of(record: Any) -> str:
    """A record (a dataclass) as its annotation has it."""
    return json.dumps(asdict(record), sort_keys=True)


def write(tools: Tools, epoch: int, ref: Ref, record: Any, patch: Obj) -> Answer:
    """Write the record together with `patch`."""
    return tools.writer.change(ref, lambda _found: _with(patch, {EFFECT: text_of(record)}), epoch)


def cordon(tools: Tools, epoch: int, ref: Ref, record: Any) -> Progress:
    """Write the first record of a change, and cordon its node."""

    def decide(found: Obj) -> Obj | Stop:
        if annotation(found, EFFECT):
            return Stop("another effect began on it meanwhile", refusal=Refusal.BUSY)
        return _with({"spec": {"unschedulable": True}}, {EFFECT: text_of(record)})

    answer = tools.writer.change(ref, decide, epoch)
    return Waiting("its node is cordoned") if answer.ok else ended_by(answer, f"cordon {ref.shown}")


def end(tools: Tools, epoch: int, ref: Ref, record: Any, ended: Ended, notes: Mapping[str, str]) -> Ended | Waiting:
    """Write `notes` in place of the record, and remove our cordon."""
    patch = _with({"spec": {"unschedulable": None}} if record.cordoned else {}, {EFFECT: None, **notes})

    def decide(found: Obj) -> Obj | Stop:
        return patch if read(found, type(record), record.lever) else Stop("ended", done=True)

    answer = tools.writer.change(ref, decide, epoch)
    return ended if answer.ok else ended_by(answer, f"uncordon {ref.shown}")


def _with(patch: Obj, notes: Mapping[str, str | None]) -> Obj:
    meta = patch.get("metadata", {})
    return {**patch, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **notes}}}


def holders(tools: Tools, ref: Ref) -> Progress | None:
    """The reason to wait for pods that hold GPUs of a node; None: it is empty."""
    pods = tools.api.list("Pod", query={"fieldSelector": f"spec.nodeName={quote(ref.name, safe='')}"})
    if isinstance(pods, Answer):
        return ended_by(pods, f"pods of {ref.shown}")
    for why in pods.unread:
        return Waiting(f"{why}; it may hold GPUs of its node")
    found = [each["metadata"]["name"] for each in pods.items if holds_gpu(each)]
    return Waiting(f"{len(found)} pods hold GPUs of its node, first {min(found)}") if found else None
