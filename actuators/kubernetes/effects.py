"""The record of an effect on an object: it shows the next controller the begun effect.

Every first write leaves the id of its instruction: in this record, in the message of our check, in the mark of a stop,
in a request for a checkpoint, or in the record of a floor or a ceiling.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from actuators.kubernetes.api import Answer, Api, Obj, unread
from actuators.kubernetes.objects import Target, annotation
from actuators.kubernetes.writing import each
from autopilot.contract.annotations import CHECK, CHECKPOINT_REQUEST, EFFECT, STOPPED
from autopilot.contract.notes import read_record
from autopilot.contract.scaling import CEILING, FLOOR
from autopilot.contract.tree import PREFIX

if TYPE_CHECKING:
    from actuators.kubernetes.levers.base import Effect


def record_of(effect: Effect, step: str, **more: object) -> Obj:
    """The annotation, for the patch of this step; `more`: data needed to undo it."""
    record = {
        "id": effect.id,
        "kind": effect.instruction.kind,
        "lever": effect.lever.name if effect.lever is not None else "",
        "step": step,
        "deadline": round(effect.instruction.deadline_s, 3),
        "epoch": effect.epoch,
        **more,
    }
    return {EFFECT: json.dumps(record)}


def id_in(text: str) -> str:
    """The id in a record, a mark or a request; "" for none."""
    found = fields_of(text).get("id")
    return found if isinstance(found, str) else ""


def fields_of(text: str) -> Obj:
    """The fields of a record; {} for any other text."""
    return read_record(text)


def wrote(found: Obj, effect: str) -> bool:
    """True if the record of an object is of this instruction."""
    return id_in(annotation(found, EFFECT)) == effect


def lever_in(documents: Iterable[Obj], effect: str) -> str:
    """Name of the lever in the record of this instruction; "" without a record."""
    records = (fields_of(annotation(found, EFFECT)) for found in documents)
    return next((str(each.get("lever", "")) for each in records if each.get("id") == effect), "")


OTHERS = ("Pod", "Node", "Deployment", "StatefulSet")
RECORDS = (EFFECT, STOPPED, CHECKPOINT_REQUEST, PREFIX + FLOOR, PREFIX + CEILING)
"""Annotations for the id of an effect, written before anything else."""


def begun(api: Api, target: Target, effect: str) -> bool | Answer:
    """True if the Workload, the Job, a pod, the node or the service shows a write of this instruction.

    The failed request, if none is seen to show it and one of the others is unreadable.
    """
    if any(_shows(found, effect) for found in (target.workload, target.job)):
        return True
    others = each([ref for kind in OTHERS for ref in target.of(kind)], api.read)
    if any(answer.ok and _shows(answer.body, effect) for answer in others):
        return True
    return unread(others) or False


def _shows(found: Obj, effect: str) -> bool:
    checks = (found.get("status") or {}).get("admissionChecks") or ()
    said = next((each.get("message", "") for each in checks if each["name"] == CHECK), "")
    together = fields_of(annotation(found, EFFECT)).get("gpus")  # changes of several GPUs of a node
    if isinstance(together, dict) and effect in together.values():
        return True
    return f": {effect}: " in said or any(id_in(annotation(found, key)) == effect for key in RECORDS)
