"""Requests of the actuators to the API server. Every answer is a value: the object, or the kind of refusal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlencode

from actuators.kubernetes.wire import unfit
from autopilot.contract.documents import parsed
from autopilot.contract.notes import shown
from autopilot.kube.access import Connections
from autopilot.kube.client import Client, Failure

Obj = dict[str, Any]

CONNECT_S = 3.0
ANSWER_S = 10.0
"""Longest time of one request; the server itself waits 10 s for a webhook."""
MOST_BYTES = 64 << 20

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
APPLY, PLAIN = "application/apply-patch+yaml", "application/json"


class Refusal(StrEnum):
    """Reason for a request that was not carried out. Measured on Kubernetes 1.36 and Kueue 0.19."""

    GONE = "gone"  # there is no such object
    OTHER_OBJECT = "other-object"  # the name now belongs to another object: the uid is not that of the instruction
    CHANGED = "changed"  # somebody wrote the object since it was read
    TAKEN = "taken"  # somebody else wrote the object, and wants something else than the instruction
    FENCED = "fenced"  # a newer controller has taken over, and the policy of the cluster says so
    WEBHOOK = "webhook"  # an admission webhook, policy or plugin of the cluster denied the write
    RIGHT = "right"  # the account has no right
    BUDGET = "budget"  # a PodDisruptionBudget forbids the eviction now
    BUSY = "busy"  # too many requests
    INVALID = "invalid"  # the server does not accept the content
    WEBHOOK_DOWN = "webhook-down"  # an admission webhook does not answer, so the server refuses every such write
    UNFIT = "unfit"  # the object cannot be read: it breaks the API's promise
    SERVER = "server"  # the server failed; the same request fails again
    UNREACHABLE = "unreachable"  # no answer came: the write may have been carried out


RETRYABLE = frozenset({Refusal.CHANGED, Refusal.BUDGET, Refusal.BUSY, Refusal.WEBHOOK_DOWN, Refusal.UNREACHABLE})
"""Refusals of requests with a chance later without any other change."""

CONFLICTS = frozenset({Refusal.GONE, Refusal.OTHER_OBJECT, Refusal.TAKEN})
"""Refusals by which the instruction does not apply any more."""

STORE_FAILS = ("etcdserver: ", "rpc error: code = Unavailable", "rpc error: code = DeadlineExceeded")
"""Texts of a 500 if etcd is silent towards the API server, or changes its leader. The write may have been stored."""
TOO_LARGE = "etcdserver: request is too large"
"""The one answer of etcd about the content of a write."""

WEBHOOK_FAILS = ("failed calling webhook", "conversion webhook for")
TWO_BUDGETS = "more than one PodDisruptionBudget"
"""Answer to the eviction of a pod selected by two budgets: a 500, for as long as both are there."""
TERMINATES = "because it is being terminated"
"""Text of a 403 in an ending namespace."""
TOO_MANY = 429
LONGEST_NAME = 2 * 253

FENCE_POLICY = "gpu-autopilot-fence"
"""Name of the shipped ValidatingAdmissionPolicy that refuses writes of an older epoch."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one request. `refusal` is None for a success; `body` is the object or the Status."""

    body: Obj = field(default_factory=dict)
    refusal: Refusal | None = None
    message: str = ""
    status: int = 200

    @property
    def ok(self) -> bool:
        """True for a request that was carried out."""
        return self.refusal is None

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later."""
        return self.refusal in RETRYABLE


@dataclass(frozen=True, slots=True)
class Listed:
    """The objects of a list. `unread`: its unreadable objects, one text for each."""

    items: tuple[Obj, ...] = ()
    unread: tuple[str, ...] = ()


def unread(answers: Iterable[Answer]) -> Answer | None:
    """The first failed read of an object that may exist; None: no such read."""
    return next((answer for answer in answers if not answer.ok and answer.refusal not in CONFLICTS), None)


@dataclass(frozen=True, slots=True)
class Ref:
    """One object. `uid` "": any object of this name (only for reads)."""

    kind: str  # a key of `KINDS`
    namespace: str  # "" for objects of the cluster
    name: str
    uid: str = ""

    @property
    def shown(self) -> str:
        """`Kind namespace/name`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def path(self) -> str:
        """Its path on the server."""
        return path_of(self.kind, self.namespace, self.name)


KINDS: Mapping[str, tuple[str, str]] = {
    "Node": ("v1", "nodes"),
    "Pod": ("v1", "pods"),
    "ConfigMap": ("v1", "configmaps"),
    "Job": ("batch/v1", "jobs"),
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "Workload": ("kueue.x-k8s.io/v1beta2", "workloads"),
    "ClusterQueue": ("kueue.x-k8s.io/v1beta2", "clusterqueues"),
    "LocalQueue": ("kueue.x-k8s.io/v1beta2", "localqueues"),
    "ResourceFlavor": ("kueue.x-k8s.io/v1beta2", "resourceflavors"),
    "PodTemplate": ("v1", "podtemplates"),
    "ProvisioningRequest": ("autoscaling.x-k8s.io/v1", "provisioningrequests"),
    "AdmissionCheck": ("kueue.x-k8s.io/v1beta2", "admissionchecks"),
    "ClusterPolicy": ("nvidia.com/v1", "clusterpolicies"),
}
"""Kinds read or written: their apiVersion and their name in paths."""


def path_of(kind: str, namespace: str = "", name: str = "") -> str:
    """The path of an object, or of its collection."""
    version, plural = KINDS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    space = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{space}/{plural}" + (f"/{quote(name, safe='')}" if name else "")


class Api:
    """Requests with the credentials of `access`. Safe for use from several threads."""

    def __init__(
        self,
        access: Connections,
        timeout_s: float = ANSWER_S,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steady_s = steady_s
        self._client = Client(access, answer_s=timeout_s, connect_s=CONNECT_S, most_bytes=MOST_BYTES, steady_s=steady_s)
        self.spent_s = 0.0
        """Time of all requests together."""
        self.may_write: Callable[[], str] = lambda: ""
        """Reason against any write now, "" for none. It is asked immediately before each write."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read an object or a list."""
        return self._ask("GET", path, query, None, PLAIN)

    def read(self, ref: Ref) -> Answer:
        """The present object; `OTHER_OBJECT` if the name belongs to another uid."""
        answer = self.get(ref.path)
        if answer.ok and (why := unfit(ref.kind, answer.body)):
            return Answer({}, Refusal.UNFIT, f"{ref.shown} cannot be read: {why}", answer.status)
        if answer.ok and ref.uid and answer.body.get("metadata", {}).get("uid") != ref.uid:
            return Answer(answer.body, Refusal.OTHER_OBJECT, f"{ref.shown} is another object of the same name", 409)
        return answer

    def list(self, kind: str, namespace: str = "", query: Mapping[str, str] | None = None) -> Listed | Answer:
        """The objects of a kind, or the failed request. An unreadable object hides no other."""
        answer = self.get(path_of(kind, namespace), query)
        if answer.ok and not isinstance(answer.body.get("items") or [], list):
            return Answer({}, Refusal.SERVER, f"the answer is no list of {kind}", answer.status)
        return listed(kind, answer.body) if answer.ok else answer

    def patch(self, path: str, body: Any, media: str, query: Mapping[str, str] | None = None) -> Answer:
        """Change an object."""
        return self._ask("PATCH", path, query, body, media)

    def post(self, path: str, body: Any, query: Mapping[str, str] | None = None) -> Answer:
        """Create an object, or ask for an action on one."""
        return self._ask("POST", path, query, body, PLAIN)

    def delete(self, path: str, body: Any, query: Mapping[str, str] | None = None) -> Answer:
        """Delete an object made by the controller itself. Work is never deleted."""
        return self._ask("DELETE", path, query, body, PLAIN)

    def _ask(self, method: str, path: str, query: Mapping[str, str] | None, body: Any, media: str) -> Answer:
        if method != "GET" and not (query or {}).get("dryRun") and (reason := self.may_write()):
            return Answer({}, Refusal.FENCED, f"not sent: {reason}", 0)
        began_s = self._steady_s()
        target = path + (f"?{urlencode(query)}" if query else "")
        reply = self._client.ask(method, target, json.dumps(body).encode() if body is not None else None, media)
        self.spent_s += self._steady_s() - began_s
        if reply.failure is Failure.STARTS:
            return Answer({}, Refusal.BUSY, reply.reason, TOO_MANY)
        if reply.failure is Failure.TOO_LONG:
            return Answer({}, Refusal.SERVER, reply.reason, reply.status)
        if reply.failure is not None:
            return Answer({}, Refusal.UNREACHABLE, f"the API server does not answer: {reply.reason}", 0)
        answer = answer_of(reply.status, reply.content, reply.headers.get("retry-after", ""))
        if method == "GET" and answer.status >= 500:  # nothing in a read can be wrong: the server or its store is down
            return replace(answer, refusal=Refusal.UNREACHABLE, message=f"the API server fails: {answer.message}")
        return answer


def answer_of(status: int, content: bytes, retry_after: str = "") -> Answer:
    """The answer of the server, with the kind of its refusal."""
    try:
        body = parsed(content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {"message": content.decode("utf-8", "replace").strip()[:300]}
        if status < 300:  # an empty list would mean something else
            return Answer(body, Refusal.SERVER, "the answer is no object of JSON", status)
    if status < 300:
        return Answer(body, None, "", status)
    message = str(body.get("message", "")) or f"HTTP {status}"
    refusal = refusal_of(status, body)
    if refusal == Refusal.SERVER and (retry_after.isdigit() or body.get("reason") == "ServerTimeout"):
        refusal = Refusal.UNREACHABLE  # the server itself asks to try again
    return Answer(body, refusal, message[:600], status)


def listed(kind: str, body: Obj) -> Listed:
    """The objects in the answer of a list."""
    judged = [(each, unfit(kind, each)) for each in body.get("items") or ()]
    found = tuple(each for each, why in judged if not why)
    return Listed(found, tuple(f"{kind} {name_in(each)} cannot be read: {why}" for each, why in judged if why))


def name_in(found: Any) -> str:
    """Namespace and name of an object of any form, for a message."""
    meta = found.get("metadata") if isinstance(found, dict) else None
    parts = [meta.get(key) for key in ("namespace", "name")] if isinstance(meta, dict) else []
    text = "/".join(each for each in parts if isinstance(each, str) and each)
    return text if text and text.isprintable() and len(text) <= LONGEST_NAME else shown(text)


def refusal_of(status: int, body: Obj) -> Refusal:
    """The kind of a refusal, from its code and its text."""
    message = str(body.get("message", ""))
    denied = "admission webhook" in message or "ValidatingAdmissionPolicy" in message
    if denied and FENCE_POLICY in message:
        return Refusal.FENCED
    if denied and status not in {429, 503}:  # a webhook chooses its own code: 400 by default
        return Refusal.WEBHOOK
    if status == 403:
        return _of_forbidden(message)
    if status in {409, 422} and _names_uid(message):
        return Refusal.OTHER_OBJECT
    if status == 429:
        causes = (body.get("details") or {}).get("causes") or ()
        budget = any(each.get("reason") == "DisruptionBudget" for each in causes)
        return Refusal.BUDGET if budget or "disruption budget" in message else Refusal.BUSY
    by_status = {
        401: Refusal.RIGHT,
        404: Refusal.GONE,
        409: Refusal.CHANGED,
        502: Refusal.UNREACHABLE,
        503: Refusal.UNREACHABLE,
        504: Refusal.UNREACHABLE,
    }
    if status == 500 and any(each in message for each in WEBHOOK_FAILS):
        return Refusal.WEBHOOK_DOWN
    if status == 500 and TWO_BUDGETS in message:
        return Refusal.BUDGET
    if status == 500 and TOO_LARGE not in message and any(each in message for each in STORE_FAILS):
        return Refusal.UNREACHABLE
    if status >= 500:
        return by_status.get(status, Refusal.SERVER)
    return by_status.get(status, Refusal.INVALID)


def _of_forbidden(message: str) -> Refusal:
    """RIGHT for a missing right; WEBHOOK for a denial by the server's own admission plugins (quotas, for example)."""
    if " cannot " in message or " is forbidden: " not in message:
        return Refusal.RIGHT
    return Refusal.GONE if TERMINATES in message else Refusal.WEBHOOK


def _names_uid(message: str) -> bool:
    return any(
        text in message
        for text in ("metadata.uid", "UID in precondition", "uid mismatch", "the UID in the precondition")
    )
