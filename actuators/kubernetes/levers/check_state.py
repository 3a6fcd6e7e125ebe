"""The state of our AdmissionCheck on a Workload, as it is read and as it is applied."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from actuators.kubernetes.api import Obj
from autopilot.contract.annotations import CHECK
from autopilot.core.model.stops import StopReason

KUEUE = "kueue.x-k8s.io"
READY, RETRY, PENDING = "Ready", "Retry", "Pending"
STOPPED_FOR = "stopped: "


def our_check(workload: Obj) -> Obj:
    """The state of our check on a Workload; {} for none."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    return next((each for each in checks if each["name"] == CHECK), {})


def message(epoch: int, effect: str, text: str) -> str:
    """The message of our check: its epoch, the instruction, and the reason."""
    return f"epoch {epoch}: {effect}: {text}"


def said_by(check: Obj, effect: str) -> bool:
    """True if the state of our check is of this instruction."""
    return f": {effect}: " in check.get("message", "")


def effect_of(text: str) -> str:
    """The instruction in a message of our check; "" for any other message."""
    epoch, _, rest = text.partition(": ")
    return rest.partition(": ")[0] if epoch.startswith("epoch ") else ""


def stopped_for(reason: StopReason) -> str:
    """The text of a check that stops its work."""
    return f"{STOPPED_FOR}{reason.value}"


def stop_reason(text: str) -> StopReason | None:
    """The check's reason for a stop of its work; None: it states no stop."""
    _, found, reason = text.rpartition(f": {STOPPED_FOR}")
    return next((each for each in StopReason if found and each.value == reason), None)


def state_of(name: str, text: str, now_s: float, **more: Any) -> Obj:
    """The state of our check as it is applied."""
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"admissionChecks": [{"name": CHECK, "state": name, "message": text, "lastTransitionTime": stamp, **more}]}
