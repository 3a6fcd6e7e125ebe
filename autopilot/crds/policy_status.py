"""The status of the AutopilotPolicy obeyed by the service: its parts in force, and the reasons for the others."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from actuators.kubernetes.wire import Conditioned, why_unfit
from autopilot.contract.annotations import MANAGER
from autopilot.core.model.modes import Modes
from autopilot.core.model.policy import Policy
from autopilot.crds.definitions import LONG_TEXT
from autopilot.crds.documents import cut, stamp
from autopilot.kube.cluster_api import MERGE, Answer
from autopilot.service.cluster_policy import ClusterPolicySource, PolicyObject
from autopilot.service.published import Published
from autopilot.settings import policy_digest

Obj = dict[str, Any]
IN_FORCE = "InForce"
AGAIN_S = 30.0
"""Least time between two tries after a failed write."""


def policy_status(source: ClusterPolicySource, latest: Published) -> Obj:
    """The status without times."""
    problem = source.problem or ""
    restraint = latest.policy_problem if not problem else ""  # the mark of the watchdog, an unchecked fence
    condition: Obj = {
        "type": IN_FORCE,
        "status": "False" if problem else "True",
        "reason": _reason(source, problem),
        "message": cut(problem or "the service obeys it as it is written", LONG_TEXT),
        "observedGeneration": source.read_generation,
    }
    actions = [_action(name, source.written, latest, problem, restraint) for name in Modes.__dataclass_fields__]
    limited = sum("why" in each for each in actions)
    if limited and not problem:
        condition["reason"] = "Limited"
        words = f"it is in force; {limited} of {len(actions)} modes go less far, see status.actions"
        condition["message"] = cut(f"{words}: {restraint}" if restraint else words, LONG_TEXT)
    return {
        "observedGeneration": source.read_generation,
        "conditions": [condition],
        "inForce": {"generation": source.generation, "digest": policy_digest(source.written)},
        "halted": cut(latest.decision.halted, LONG_TEXT),
        "actions": actions,
        "epoch": latest.memory.fence,
    }


def _reason(source: ClusterPolicySource, problem: str) -> str:
    if not problem:
        return "AsWritten"
    return "Invalid" if source.read_generation > source.generation else "Unreadable"


def _action(name: str, written: Policy, latest: Published, problem: str, restraint: str) -> Obj:
    """The mode of an action, and the reason for less than the written one."""
    wanted, now = getattr(written.modes, name).value, getattr(latest.policy.modes, name).value
    record = latest.memory.trust.kept_promises.get(name)
    found = {"action": name, "written": wanted, "inForce": now}
    if wanted != now:
        reason = "the policy as it is written now is not in force" if problem else restraint
        found["why"] = (
            cut(reason, LONG_TEXT) or f"this service goes as far as {now} here; `autopilot run --check` says why"
        )
    elif record is not None and record.capped_s < inf and wanted in {"approve", "auto"}:
        found["inForce"] = "recommend"
        found["why"] = f"it realised too little of its promise; `autopilot lift {name}` ends that"
    return found


class PolicyStatus:
    """Writes the status after a change of it."""

    def __init__(
        self,
        source: ClusterPolicySource,
        get: Callable[[str], Answer],
        send: Callable[[str, str, Any, str], Answer],
        steady_s: Callable[[], float],
    ) -> None:
        """`get` and `send` reach the API server."""
        self._source, self._get, self._send, self._steady_s = source, get, send, steady_s
        self._written: Obj | None = None
        self._since: dict[str, str] = {}  # status of the condition -> its start
        self._again_s, self._problem = float("-inf"), ""
        self.writes = 0

    def __call__(self, latest: Published) -> str:
        """Reason for a failed write of the status; "" if it is as it should be."""
        place = self._source.place
        if not isinstance(place, PolicyObject) or self._source.read_generation == 0:
            return ""  # it does not exist, and that is the problem of the policy
        wanted = policy_status(self._source, latest)
        if wanted == self._written:
            return ""
        if self._steady_s() < self._again_s:
            return self._problem
        self._problem = self._write(place, wanted, latest)
        if self._problem:
            self._again_s = self._steady_s() + AGAIN_S
        else:
            self._written = wanted
        return self._problem

    def _write(self, place: PolicyObject, wanted: Obj, latest: Published) -> str:
        condition = wanted["conditions"][0]
        if not self._since:
            self._since = self._known(place)
        if condition["status"] not in self._since:
            self._since = {condition["status"]: stamp(latest.observation.now_s)}
        timed = {**condition, "lastTransitionTime": self._since[condition["status"]]}
        self.writes += 1
        body = {"status": {**wanted, "conditions": [timed]}}
        answer = self._send("PATCH", f"{place.path}/status?fieldManager={MANAGER}", body, MERGE)
        if answer.status == 200:
            return ""
        if answer.status == 404:
            return ""  # it is gone; the policy says so
        return f"{place}: its status cannot be written: {answer.reason}; apply deploy/crds/roles.yaml"

    def _known(self, place: PolicyObject) -> dict[str, str]:
        """Time since which the condition of an earlier leader holds."""
        read = self._get(place.path).document
        found = read.get("status") or {} if not why_unfit(read, Conditioned) else {}
        return {
            str(each.get("status")): str(each.get("lastTransitionTime"))
            for each in found.get("conditions") or []
            if each.get("type") == IN_FORCE and each.get("lastTransitionTime")
        }
