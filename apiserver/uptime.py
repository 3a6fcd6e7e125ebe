"""The process of the API server: killed, ended, started again, and its first seconds after that.

The times are medians of restarts recorded with Kubernetes 1.36, in seconds after the start.
"""

from __future__ import annotations

from collections.abc import Iterator

from apiserver.errors import StatusError
from apiserver.kinds.base import Kind, State
from apiserver.requests import Response
from apiserver.timeline import US
from apiserver.users import User

OPENS_S = 0.07  # connections are refused until then
BLOCKED_S = 1.2  # the first requests wait until then
RIGHTS_S = 1.4  # roles and bindings are not known before: everybody but system:masters is refused
CUSTOM_S = 2.3  # the caches of custom resources are filled
GRACE_S = 60.0  # from SIGTERM to the end of the watches that were open
RETRY_S = 1
MASTERS = "system:masters"
CHECKS_S: dict[str, float] = {  # of /livez and /readyz: when each succeeds; the others do from the first answer on
    "informer-sync": 1.405,
    "poststarthook/start-apiextensions-controllers": 1.43,
    "poststarthook/crd-informer-synced": 1.43,
    "poststarthook/start-kube-apiserver-identity-lease-controller": 1.6,
    "poststarthook/start-service-ip-repair-controllers": 1.46,
    "poststarthook/rbac/bootstrap-roles": 2.69,
    "poststarthook/scheduling/bootstrap-system-priority-classes": 2.3,
    "poststarthook/priority-and-fairness-config-producer": 1.43,
    "poststarthook/bootstrap-controller": 1.43,
    "poststarthook/start-kubernetes-service-cidr-controller": 1.43,
    "poststarthook/apiservice-registration-controller": 1.43,
    "poststarthook/apiservice-discovery-controller": 1.46,
    "autoregister-completion": 1.39,
}


class Uptime:
    """The state of the process, and its age."""

    def __init__(self, server: State) -> None:
        self._server = server
        self._started_us: int | None = None  # None: long ago
        self.down = False
        self._filled_us: dict[tuple[str, str, str], int] = {}  # when the cache of a new kind is filled

    @property
    def age_s(self) -> float:
        """Seconds since the start, at least the wait of a request; infinite without a restart."""
        if self._started_us is None:
            return float("inf")
        return max((self._server.timeline.now_us - self._started_us) / US, BLOCKED_S)

    def kill(self) -> None:
        """SIGKILL: nothing is answered, and watches break without an event."""
        self._go_down()
        self._end_watches()

    def end(self) -> None:
        """SIGTERM: new requests are refused at once; watches stay open and silent for a minute."""
        self._go_down()
        self._server.timeline.at(GRACE_S, self._end_watches)

    def _go_down(self) -> None:
        self.down = True
        for process in self._server.processes.values():
            process.cut()

    def _end_watches(self) -> None:
        for streams in list(self._server.streams.values()):
            for stream in list(streams):
                stream.close()

    def start(self) -> None:
        """The process is started again: its memory is gone. Its port opens a moment later."""
        self._server.timeline.at(OPENS_S, self._open)
        self._server.store.restart()
        for lose in self._server.restarts:
            lose()
        self._started_us = self._server.timeline.now_us
        self._server.timeline.at(RIGHTS_S, self._reach)

    def _open(self) -> None:
        self.down = False

    def _reach(self) -> None:
        """The other programs of the cluster find the server again."""
        if not self.down:
            for process in self._server.processes.values():
                process.reconnect()

    def wait_s(self) -> float:
        """Present wait of a request for its answer (s)."""
        if self._started_us is None:
            return 0.0
        return max(BLOCKED_S - (self._server.timeline.now_us - self._started_us) / US, 0.0)

    def knows_rights(self, user: User) -> bool:
        """True if the roles of a user are known yet."""
        return self.age_s >= RIGHTS_S or MASTERS in user.groups

    def fill(self, kind: Kind, delay_s: float) -> None:
        """Fill the cache of a newly served kind after a delay."""
        place = (kind.group, kind.version, kind.plural)
        self._filled_us[place] = self._server.timeline.now_us + round(delay_s * US)

    def check_cache(self, kind: Kind) -> None:
        """Refuse a list or watch of custom resources before their cache is filled. Raises StatusError 429.

        After a restart, only those of several versions are refused.
        """
        if self._server.timeline.now_us < self._filled_us.get((kind.group, kind.version, kind.plural), 0):
            raise initializing()
        if not kind.custom or self.age_s >= CUSTOM_S:
            return
        if len([each for each in self._server.kinds.all() if each.storage == kind.storage]) > 1:
            raise initializing()

    def failing(self) -> Iterator[str]:
        """The checks of /readyz failing now."""
        age_s = self.age_s
        return (name for name, succeeds_s in CHECKS_S.items() if age_s < succeeds_s)


def initializing() -> StatusError:
    """429: the cache of a resource is being filled."""
    details = {"retryAfterSeconds": RETRY_S}
    headers = {"retry-after": str(RETRY_S)}
    return StatusError(429, "TooManyRequests", "storage is (re)initializing", details, headers)


def no_answer() -> Response:
    """The answer to a client of a server that is down: status 0."""
    return Response(0)
