"""Faults that the shell injects: slow and broken answers, refusals, watch events twice or out of order."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from apiserver.requests import Response, WatchEvent

APF_TEXT = "Too many requests, please try again later.\n"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How often each fault happens: shares of requests (of events: `duplicated`, `reordered`) between 0 and 1."""

    slow: float = 0.0
    slow_s: float = 2.0
    dropped: float = 0.0  # the connection breaks in the middle of a response, or of a watch
    too_many: float = 0.0  # 429 of priority and fairness, with Retry-After 1
    conflict: float = 0.0  # 409, of writes alone
    error: float = 0.0  # 500
    duplicated: float = 0.0
    reordered: float = 0.0
    store: float = 0.0  # 500 of etcd, of writes that are no trial
    stored: float = 0.5  # of these writes: carried out all the same
    starting: float = 0.0  # as by a server whose roles are not loaded yet: 403, 503; and /readyz answers 500


HEALTH = ("/readyz", "/livez", "/healthz")
_UNKNOWN = 'forbidden: User "x" cannot get resource "x" in API group "" at the cluster scope'
STARTING = (
    (403, "Forbidden", _UNKNOWN),
    (403, "Forbidden", f'{_UNKNOWN}: RBAC: [clusterrole.rbac.authorization.k8s.io "x" not found]'),
    (503, "ServiceUnavailable", "the request has been made before all known HTTP paths have been installed"),
)
"""Answers of Kubernetes 1.36 in its first seconds."""

QUIET = FaultPlan()
ALL = FaultPlan(0.05, 0.5, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request."""

    delay_s: float = 0.0
    answer: Response | None = None  # instead of the server's
    carried_out: bool = False  # the request, although `answer` says that it failed
    drop: bool = False
    drop_after: int | None = None  # events of a watch


class Faults:
    """Draws faults by a plan and a seed. The plan can be changed at any time."""

    def __init__(self, plan: FaultPlan = QUIET, seed: int = 1) -> None:
        self.plan = plan
        self._rng = random.Random(seed)  # noqa: S311 - faults are no secret

    def draw(self, method: str, path: str = "", *, watch: bool, dry: bool = False) -> Fault:
        """The fault of one request; mostly none. `dry`: the server only tries it (dryRun)."""
        plan, rng = self.plan, self._rng
        if plan == QUIET:
            return Fault()
        if plan.starting and path in HEALTH:
            text = "[+]ping ok\n[-]informer-sync failed: reason withheld\nreadyz check failed\n"
            return Fault(answer=Response(500, text, {"content-type": "text/plain; charset=utf-8"}))
        if rng.random() < plan.starting:
            return Fault(answer=_failure(*rng.choice(STARTING)))
        fault = Fault(delay_s=plan.slow_s if rng.random() < plan.slow else 0.0)
        if rng.random() < plan.too_many:
            headers = {"content-type": "text/plain; charset=utf-8", "retry-after": "1"}
            return replace(fault, answer=Response(429, APF_TEXT, headers))
        if method not in {"GET", "HEAD"} and rng.random() < plan.conflict:
            return replace(fault, answer=_failure(409, "Conflict", "Operation cannot be fulfilled: a planned fault"))
        if plan.store and not dry and method not in {"GET", "HEAD"} and rng.random() < plan.store:
            failed = _failure(500, "", "etcdserver: request timed out")
            return replace(fault, answer=failed, carried_out=rng.random() < plan.stored)
        if rng.random() < plan.error:
            return replace(fault, answer=_failure(500, "InternalError", "Internal error occurred: a planned fault"))
        if rng.random() < plan.dropped:
            return replace(fault, drop_after=rng.randrange(1, 50)) if watch else replace(fault, drop=True)
        return fault

    def stirred(self, events: list[WatchEvent]) -> list[WatchEvent]:
        """The events of one look at a stream, some twice, some swapped with the next."""
        plan, rng = self.plan, self._rng
        if not plan.duplicated and not plan.reordered:
            return events
        found: list[WatchEvent] = []
        for event in events:
            found.append(event)
            if rng.random() < plan.duplicated:
                found.append(event)
        for at in range(len(found) - 1):
            if rng.random() < plan.reordered:
                found[at], found[at + 1] = found[at + 1], found[at]
        return found


def _failure(code: int, reason: str, message: str) -> Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return Response(code, body, {"content-type": "application/json"})
