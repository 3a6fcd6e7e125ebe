"""An API server just started refuses requests that it will permit: its roles are not loaded yet.

For the first 1 to 3 s a service account is answered 403, with or without `RBAC: [clusterrole ... not found]` at the
end, and `/readyz` answers 500. The rights are complete before `/readyz` is ok (measured on Kubernetes 1.36). So a 403
for a missing right counts only if it comes again after `/readyz` was ok. `/readyz` needs no right.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import urllib3

from autopilot.deadline import within
from autopilot.kube.access import Connections

FORBIDDEN = 403
LOOK_S = 3.0
"""Longest time of the question."""
BELIEVED_S = 1.0
"""An answer holds this long: a restart of the server takes longer."""


def names_a_right(status: int, text: str) -> bool:
    """True if the account has no right by this answer, and no admission plugin refused it."""
    plugin = "admission webhook" in text or "ValidatingAdmissionPolicy" in text
    return status == FORBIDDEN and "orbidden: User " in text and not plugin


class Starting:
    """Tells if the API server has just started. Safe for use from several threads."""

    def __init__(self, access: Connections, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._access, self._steady_s = access, steady_s
        self._ready_s = float("-inf")

    def why(self) -> str:
        """The answer of `/readyz` while the server starts; "" after it."""
        if self._steady_s() - self._ready_s < BELIEVED_S:
            return ""
        asked_s = self._steady_s()
        try:
            pool, headers, _ = self._access.connection()
            with within(LOOK_S):
                response = pool.request(
                    "GET",
                    f"{self._access.host}/readyz",
                    headers=headers,
                    redirect=False,
                    retries=False,
                    timeout=urllib3.Timeout(connect=LOOK_S, read=LOOK_S),
                )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return f"the API server starts: /readyz does not answer ({type(error).__name__})"
        if response.status >= 500:
            return f"the API server starts: /readyz answers {response.status}"
        self._ready_s = asked_s
        return ""
