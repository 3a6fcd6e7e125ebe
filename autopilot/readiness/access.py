"""The API server: its answer, our user, the clocks, and our right to read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from autopilot.kube.cluster_api import Answer
from autopilot.readiness.line import Asked, Line, Status

OLDEST_MINOR = 29
"""Oldest minor release of Kubernetes 1 checked for batch/v1, policy/v1 and watch bookmarks."""
SERVER_FAILS = 500
SKEW_WARNING_S, SKEW_FAILED_S = 3.0, 60.0
"""A `Date` header has whole seconds; a policy distrusts times more than `clock.max_skew_s` in the future."""


def reachable(asked: Asked) -> Iterator[Line]:
    """The version of the server; the first check, without which no other one can answer."""
    ready = asked.cluster.get("/readyz")
    if ready.status >= SERVER_FAILS:
        text = f"the API server starts, and does not know all rights yet: /readyz answers {ready.status}"
        yield Line("api-server", "connection", Status.FAILED, text, "run it again when `/readyz` answers 200")
        return
    answer = asked.cluster.get("/version")
    if answer.status == 0:
        fix = "check the address in the kubeconfig, the network and the certificate"
        yield Line("api-server", "connection", Status.FAILED, f"the API server does not answer: {answer.text}", fix)
        return
    if answer.status == 401:
        fix = "renew the credentials of the kubeconfig or of the service account"
        yield Line("api-server", "connection", Status.FAILED, "the API server refuses the credentials", fix)
        return
    version = str(answer.document.get("gitVersion", ""))
    found = re.match(r"v?1\.(\d+)", version)
    if found is None:
        fix = "check that the address is that of a Kubernetes API server"
        text = f"/version answers {answer.status} and names no Kubernetes version"
        yield Line("api-server", "version", Status.FAILED, text, fix)
    elif int(found[1]) < OLDEST_MINOR:
        fix = f"upgrade to Kubernetes 1.{OLDEST_MINOR} or later"
        yield Line("api-server", "version", Status.WARNING, f"{version} is older than what was tested", fix)
    else:
        yield Line("api-server", "version", Status.OK, version)
    yield from _skew(asked, answer)


def _skew(asked: Asked, answer: Answer) -> Iterator[Line]:
    said = {name.lower(): value for name, value in answer.headers.items()}.get("date", "")
    try:
        skew_s = asked.now_s() - parsedate_to_datetime(said).timestamp()
    except (TypeError, ValueError):
        yield Line("clock", "API server", Status.UNKNOWN, "the API server states no time", "compare the clocks by hand")
        return
    late = "ahead of" if skew_s > 0 else "behind"
    text = f"this machine's clock is {abs(skew_s):.0f} s {late} that of the API server"
    fix = "synchronise both clocks (NTP); times that lie in the future are treated as unknown"
    if abs(skew_s) >= SKEW_FAILED_S:
        yield Line("clock", "API server", Status.FAILED, text, fix)
    elif abs(skew_s) >= SKEW_WARNING_S:
        yield Line("clock", "API server", Status.WARNING, text, fix)
    else:
        yield Line("clock", "API server", Status.OK, "the clocks agree within 3 s")


def identity(asked: Asked) -> Iterator[Line]:
    """The user as seen by the server."""
    user, reason = user_of(asked)
    if user:
        yield Line("identity", "user", Status.OK, user)
    else:
        yield Line("identity", "user", Status.UNKNOWN, f"the server names no user: {reason}", "none needed")


def user_of(asked: Asked) -> tuple[str, str]:
    """The name of the user as seen by the server ("": it names none), and its reason."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = asked.cluster.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    return str(((answer.document.get("status") or {}).get("userInfo") or {}).get("username", "")), answer.reason
