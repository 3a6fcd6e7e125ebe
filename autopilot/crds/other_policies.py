"""The status of the AutopilotPolicies not obeyed by the service: each names the one in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actuators.kubernetes.api import name_in
from actuators.kubernetes.wire import Conditioned, why_unfit
from autopilot.contract.annotations import MANAGER
from autopilot.crds.documents import stamp
from autopilot.crds.names import POLICIES, POLICY_KIND, collection, path
from autopilot.crds.policy_status import IN_FORCE
from autopilot.kube.cluster_api import MERGE, Answer
from autopilot.readiness.line import items
from autopilot.service.cluster_policy import PolicyObject, PolicyPlace
from autopilot.service.published import Published

Obj = dict[str, Any]
EVERY_S = 30.0
"""Time between two looks."""
NOT_OBEYED = "NotObeyed"


class OtherPolicies:
    """Writes the condition InForce of every other policy, and of one that was in force before."""

    def __init__(
        self,
        place: PolicyPlace,
        get: Callable[[str], Answer],
        send: Callable[[str, str, Any, str], Answer],
        steady_s: Callable[[], float],
    ) -> None:
        """`place`: the policy in force. `get` and `send` reach the API server."""
        self._place, self._get, self._send, self._steady_s = place, get, send, steady_s
        self._due_s, self._problem = float("-inf"), ""

    def __call__(self, latest: Published) -> str:
        """Reason for a failed write of a status; "" if all are as they should be."""
        if self._steady_s() >= self._due_s:
            self._due_s = self._steady_s() + EVERY_S
            self._problem = self._look(latest)
        return self._problem

    def _look(self, latest: Published) -> str:
        listed = self._get(collection(POLICIES))
        if listed.status != 200:
            return f"{POLICIES} cannot be listed: {listed.reason}; apply deploy/crds/roles.yaml"
        obeyed = self._place.name if isinstance(self._place, PolicyObject) else ""
        problem = ""
        for found in items(listed):
            why = why_unfit(found, Conditioned)
            if why:
                problem = f"{POLICY_KIND} {name_in(found)} cannot be read: {why}"
            elif found["metadata"]["name"] != obeyed:
                problem = self._tell(found, latest) or problem
        return problem

    def _tell(self, found: Obj, latest: Published) -> str:
        meta, status = found["metadata"], found.get("status") or {}
        said = f"the service obeys {self._place}: its settings name that one (kubernetes.policy_object)"
        known: Obj = next((each for each in status.get("conditions") or () if each.get("type") == IN_FORCE), {})
        if (known.get("reason"), known.get("message")) == (NOT_OBEYED, said):
            return ""
        condition = {
            "type": IN_FORCE,
            "status": "False",
            "reason": NOT_OBEYED,
            "message": said,
            "lastTransitionTime": stamp(latest.observation.now_s),
        }
        gone = dict.fromkeys(("observedGeneration", "inForce", "halted", "actions"))
        body = {
            "metadata": {"uid": meta["uid"]},
            "status": {**gone, "conditions": [condition], "epoch": latest.memory.fence},
        }
        answer = self._send("PATCH", f"{path(POLICIES, meta['name'], 'status')}?fieldManager={MANAGER}", body, MERGE)
        if answer.status in {200, 404}:
            return ""
        return f"{POLICY_KIND} {meta['name']}: its status cannot be written: {answer.reason}"
