"""Requests by HTTP to the port named by a pod: for checkpoints of work with a short grace, and for pauses.

A pod names the port by the annotation `gpu-autopilot.io/checkpoint-port`, and the path of checkpoints by
`checkpoint-path`. Only the pod's own address is called, redirects are not followed, and nothing of the answer is used
but its code. A pause needs the token of its namespace, made from our secret: no namespace learns that of another.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

import urllib3

from actuators.kubernetes.api import Obj
from actuators.kubernetes.objects import annotation
from autopilot.contract.annotations import CHECKPOINT_PATH, CHECKPOINT_PORT
from autopilot.deadline import watched, within

CONNECT_S, ANSWER_S = 1.0, 2.0
MOST_BYTES = 4096
"""Bytes of an answer read away; the rest is left with its connection."""
TAKEN = frozenset({200, 202, 204})
"""Codes for a request received by the program. 409: it works on another one."""
PATH = re.compile(r"/[A-Za-z0-9/_.~-]{0,200}")
DEFAULT_PATH = "/checkpoint"
PAUSE, RESUME = "/pause", "/resume"
NOT_PAUSED = 409
"""The answer to `RESUME` of a program that is not paused."""


def declares_hook(pod: Obj) -> bool:
    """True if a pod names a port for requests."""
    return bool(annotation(pod, CHECKPOINT_PORT))


def token_of(secret: str, namespace: str) -> str:
    """The token of the programs of a namespace: HMAC-SHA256 of its name, in hexadecimal digits."""
    return hmac.new(secret.encode(), namespace.encode(), hashlib.sha256).hexdigest()


def _pool() -> urllib3.PoolManager:
    return watched(urllib3.PoolManager(num_pools=64, maxsize=1))


@dataclass(frozen=True, slots=True)
class Hooks:
    """Calls pods."""

    reach: Callable[[str], str] = lambda address: address
    """The host to connect to for the address of a pod."""
    secret: Callable[[], str] = str
    """Our secret behind the tokens, read at each request; "": pauses are refused."""
    pool: urllib3.PoolManager = field(default_factory=_pool)

    def ask(self, pod: Obj, request: str, deadline_s: float) -> str:
        """Send the request to a pod; returns the reason for a failure, "" for a success."""
        body = {"id": request, "deadline": round(deadline_s, 3)}
        return self._post(pod, annotation(pod, CHECKPOINT_PATH) or DEFAULT_PATH, body, {}, TAKEN)

    def pause(self, pod: Obj, seconds: float) -> str:
        """Let the program of a pod wait at its next step boundary, for `seconds`; returns as `ask`."""
        return self._post(pod, PAUSE, {"seconds": round(seconds, 3)}, self._authorized(pod), TAKEN)

    def resume(self, pod: Obj) -> str:
        """Let it go on; returns as `ask`."""
        return self._post(pod, RESUME, {}, self._authorized(pod), TAKEN | {NOT_PAUSED})

    def _authorized(self, pod: Obj) -> dict[str, str]:
        return {"Authorization": f"Bearer {token_of(self.secret(), str(pod['metadata'].get('namespace', '')))}"}

    def _post(
        self, pod: Obj, path: str, body: Mapping[str, object], headers: Mapping[str, str], taken: frozenset[int]
    ) -> str:
        name = f"pod {pod['metadata']['name']}"
        port = annotation(pod, CHECKPOINT_PORT)
        if not port.isdecimal() or not 0 < int(port) < 65536:
            return f"{name}: {CHECKPOINT_PORT} is {port[:20]!r}, not a port"
        if not PATH.fullmatch(path) or ".." in path:
            return f"{name}: {CHECKPOINT_PATH} is {path[:40]!r}; write letters, digits, / . _ ~ and -"
        address = str(pod.get("status", {}).get("podIP", ""))
        why_not = _not_a_pod(pod, address)
        if why_not:
            return f"{name}: {why_not}"
        host = self.reach(address)
        host = f"[{host}]" if ":" in host else host
        try:
            with within(ANSWER_S):
                answer = self.pool.request(
                    "POST",
                    f"http://{host}:{port}{path}",
                    body=json.dumps(body).encode(),
                    headers={"Content-Type": "application/json", **headers},
                    preload_content=False,
                    redirect=False,
                    retries=False,
                    timeout=urllib3.Timeout(connect=CONNECT_S, read=ANSWER_S),
                )
                answer.read(MOST_BYTES)
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return f"{name}: port {port} does not answer: {type(error).__name__}"
        return "" if answer.status in taken else f"{name}: port {port} answers {answer.status}"


def _not_a_pod(pod: Obj, address: str) -> str:
    """Reason against the address as that of the pod alone; "" for none."""
    if pod["spec"].get("hostNetwork"):
        return "it uses the network of its node, so its address is not its own"
    try:
        found = ip_address(address)
    except ValueError:
        return f"it has no address: {address!r}"
    special = found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified
    return f"{address} is not the address of a pod" if special else ""
