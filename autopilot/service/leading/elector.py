"""Election by a Lease, with a fence.

The fence is `leaseTransitions`. Each term has a higher one than every term before, also after a deletion of the Lease
or a change by hand. A term ends for good at the lapse of its fence: a controller that leads again has a new fence.

Only the local monotonic clock counts. The times in the Lease are for people.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from actuators.kubernetes.events import event_of
from autopilot.core.model.errors import InputError
from autopilot.kube.cluster_api import Answer
from autopilot.service.leading.lease import LeaseName, LeaseRecord, Terms, micro_time, misread, read_lease, text_in

log: Any = structlog.get_logger("leadership")

NOT_FOUND, CONFLICT = 404, 409
RELEASED_S = 1.0
"""Duration in a Lease given back by its holder, as in client-go."""
LONGEST_S = 300.0
"""The longest lease of the settings: a longer one was written by hand."""


class Requests(Protocol):
    """The API server (`ClusterApi`). A request without an answer is an `Answer` with status 0."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Read."""
        ...

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Create."""
        ...

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Replace."""
        ...


def steady_s() -> float:
    """A clock that never goes back and, if the system has one, also counts the sleep of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def new_identity() -> str:
    """A unique name for this process: pod, uid of the pod, and a random part."""
    pod = os.environ.get("POD_NAME") or socket.gethostname()
    return "_".join(each for each in (pod, os.environ.get("POD_UID", ""), secrets.token_hex(8)) if each)


@dataclass(frozen=True, slots=True)
class _Term:
    """A time of leadership. `until_s`: the lapse of its fence."""

    fence: int
    until_s: float


class Elector:
    """One candidate (port `Leadership`). `step` sends requests; `fence` and `still` never do."""

    def __init__(
        self,
        api: Requests,
        name: LeaseName,
        terms: Terms,
        *,
        known_fence: Callable[[], int] = lambda: 0,
        identity: Callable[[], str] = new_identity,
        monotonic_s: Callable[[], float] = steady_s,
        wall_s: Callable[[], float] = time.time,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`known_fence` returns the highest fence known to the cluster, and raises `OSError` if it is unreadable.

        `on_change` is called, in the thread of `step`, at the start and the end of this controller's leadership.
        """
        self._api, self.name, self._terms = api, name, terms
        self._known_fence, self._new_identity = known_fence, identity
        self._monotonic_s, self._wall_s, self._on_change = monotonic_s, wall_s, on_change
        self.identity = identity()
        self.problem = ""  # reason for a last step without news
        self.holder = ""  # the leader, as last seen
        self._term: _Term | None = None
        self._ours: dict[LeaseRecord, float] = {}  # records sent by this term, with their times
        self._version = ""  # of the Lease as this term wrote it; "": it has to be read first
        self._acquired = ""
        self._seen: tuple[str, LeaseRecord] | None = None
        self._seen_s = 0.0  # its first sight
        self._absent_s: float | None = None  # first time the Lease was missing
        self._highest = 0  # the highest fence ever seen
        self._uid = ""  # of the Lease, as it was last read
        self._outdone: int | None = None  # a fence older than one known to the cluster
        self.halted: Callable[[], str] = lambda: ""  # reason against any renewal and taking by this process
        self.impostors = 0  # writes of the Lease by another process under our identity

    def fence(self) -> int | None:
        """The fence of this term; None from `renew_s` after the last renewal on."""
        term = self._term
        return term.fence if term is not None and self._monotonic_s() < term.until_s else None

    def still(self, fence: int) -> bool:
        """True if a write with this fence may leave now. Ask immediately before each write."""
        return self.fence() == fence

    def outdone(self, fence: int) -> None:
        """The cluster knows a later fence than this one: its term ends with the next step. Any thread may call it."""
        self._outdone = fence

    def step(self) -> None:
        """One turn: renew, take or wait. Call it every `retry_s`."""
        before, problem = self.fence(), self.problem
        if self._term is not None and self._term.fence == self._outdone:
            self._end("the cluster knows a later fence")
        if self._term is not None and before is None:
            self._end("the Lease could not be renewed in time")
        if halted := self.halted():
            self.problem = halted
        elif self._term is not None and self._version:
            self._renew()
        else:
            self._look()
        if self.problem and self.problem != problem:
            log.warning("the election waits", reason=self.problem)
        if self.fence() != before:
            self._on_change()

    def release(self) -> None:
        """End this term and let another controller lead at once."""
        if self._term is None or not self._version:
            self._term = None
            return
        term, self._term = self._term, None  # nothing may leave from here on
        gone = LeaseRecord("", RELEASED_S, self._acquired, micro_time(self._wall_s()), term.fence)
        self._api.put(self.name.path, gone.document(self.name, self._version))

    def _renew(self) -> None:
        """Write the Lease over the last version written by this term."""
        assert self._term is not None  # noqa: S101 - `step` asks
        record = LeaseRecord(self.identity, self._terms.duration_s, self._acquired, self._now(), self._term.fence)
        sent_s = self._monotonic_s()
        answer = self._api.put(self.name.path, record.document(self.name, self._version))
        if answer.status == 200:
            self._hold(record, answer, sent_s)
            return
        self._ours[record] = sent_s  # it may have arrived all the same
        self._version = ""
        if answer.status in {NOT_FOUND, CONFLICT}:
            self._look()
        else:
            self._not_told(answer)

    def _look(self) -> None:
        """Read the Lease and draw the conclusion."""
        answer = self._api.get(self.name.path)
        if answer.status == NOT_FOUND:
            self._missing()
            return
        if answer.status != 200:
            self._not_told(answer)
            return
        why = misread(answer.document)
        self.problem, self._absent_s = f"{self.name} cannot be read: {why}" if why else "", None
        record, version = read_lease(answer.document)
        self._uid = uid_of(answer)
        self._highest = max(self._highest, record.transitions)
        self.holder = record.holder
        if self._term is not None and record in self._ours:  # a renewal with a lost answer
            self._version = version
            self._extend(self._ours[record])
            self._renew()
            return
        if record.holder == self.identity and record not in self._ours:
            self._impostor(record)
        elif self._term is not None:
            self._end(f"the Lease is held by {record.holder or 'no controller'}")
        self._wait_or_take(record, version)

    def _wait_or_take(self, record: LeaseRecord, version: str) -> None:
        now_s = self._monotonic_s()
        if self._seen != (version, record):
            self._seen, self._seen_s = (version, record), now_s
        lasts_s = max(min(record.duration_s, LONGEST_S), self._terms.duration_s)
        own = record in self._ours  # our own lapsed term: no other controller has led since
        if not own and now_s - self._seen_s < lasts_s and not self._released(record):
            return
        self._take(version)

    def _released(self, record: LeaseRecord) -> bool:
        """True if its last holder gave it back. A Lease written by a person may still have a leader."""
        if record.holder or record.duration_s != RELEASED_S:
            return False
        fence = self._least_fence()
        return fence is not None and record.transitions + 1 >= fence

    def _missing(self) -> None:
        """Without a Lease the last leader is unknown: wait the time of a lease, unless there never was a leader."""
        now_s = self._monotonic_s()
        if self._term is not None:
            self._end("the Lease was deleted")
        if self._absent_s is None:
            self._absent_s = now_s
        self.holder, self._seen = "", None
        fence = self._least_fence()
        if fence is not None and (fence == 1 or now_s - self._absent_s >= self._terms.duration_s):
            self._take("", fence)

    def _take(self, version: str, fence: int | None = None) -> None:
        """Write the Lease with the next fence: over `version`, or as a new object."""
        fence = fence if fence is not None else self._least_fence()
        if fence is None:
            return
        now = self._now()
        record = LeaseRecord(self.identity, self._terms.duration_s, now, now, fence)
        sent_s = self._monotonic_s()
        if version:
            answer = self._api.put(self.name.path, record.document(self.name, version))
        else:
            answer = self._api.post(self.name.parent, record.document(self.name))
        if answer.status in {200, 201}:
            self._acquired, self._term = now, _Term(fence, sent_s)
            self._hold(record, answer, sent_s)
            log.info("this controller leads", lease=str(self.name), fence=fence, identity=self.identity)
            self._tell("LeaderElection", f"{self.identity} leads with fence {fence}")
        elif answer.status == CONFLICT:
            self._seen = None  # somebody was faster: look again
        else:
            self._ours[record] = sent_s
            self._not_told(answer)

    def _least_fence(self) -> int | None:
        """The fence of the next term; None if the memory's fence is unreadable."""
        try:
            known = self._known_fence()
        except (OSError, InputError) as error:
            self.problem = f"{self.name}: the fence that the cluster knows cannot be read: {error}"
            return None
        return max(self._highest, known) + 1

    def _hold(self, record: LeaseRecord, answer: Answer, sent_s: float) -> None:
        """A write succeeded: the term lasts `renew_s` from its sending."""
        _, self._version = read_lease(answer.document)
        self._uid = uid_of(answer)
        self._ours = {record: sent_s}
        self._highest = max(self._highest, record.transitions)
        self._extend(sent_s)
        self._absent_s, self._seen = None, None
        self.holder, self.problem = self.identity, ""

    def _extend(self, sent_s: float) -> None:
        assert self._term is not None  # noqa: S101 - only a term is extended
        self._term = replace(self._term, until_s=max(self._term.until_s, sent_s + self._terms.renew_s))

    def _end(self, reason: str) -> None:
        log.warning("this controller leads no longer", lease=str(self.name), reason=reason)
        self._term, self._version = None, ""

    def _impostor(self, record: LeaseRecord) -> None:
        """Another process writes the Lease under our identity, for example a copy of this machine."""
        log.error(
            "two controllers have one identity",
            lease=str(self.name),
            identity=self.identity,
            renewed=record.renewed,
            fix="start each controller as a process of its own; this one takes a new identity and waits",
        )
        self.impostors += 1
        if self._term is not None:
            self._end("another controller renews the Lease under the same identity")
        before, self._ours = self.identity, {}
        self.identity = self._new_identity()
        self._tell(
            "IdentityConflict",
            f"another process renews the Lease as {before}; this one stopped acting and waits as {self.identity}",
            warning=True,
        )

    def counts(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Counts since the start, as metrics."""
        return {"identity_conflicts_total": {(): float(self.impostors)}}

    def _tell(self, reason: str, note: str, *, warning: bool = False) -> None:
        """Write an Event on the Lease. It is for people: a failed write changes nothing."""
        about = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "namespace": self.name.namespace,
            "name": self.name.name,
            "uid": self._uid,
        }
        instance = socket.gethostname()[:128]
        self._api.post(*event_of(about, reason, "Lead", note, self._wall_s(), instance=instance, warning=warning))

    def _not_told(self, answer: Answer) -> None:
        self.problem = f"{self.name}: {answer.reason if answer.status else answer.text}"

    def _now(self) -> str:
        return micro_time(self._wall_s())


def uid_of(answer: Answer) -> str:
    """The uid of the answered object; "" for none."""
    return text_in(answer.document, "uid")


class ElectorThread:
    """Steps an elector every `retry_s` until it is closed."""

    def __init__(self, elector: Elector, retry_s: float) -> None:
        self._elector, self._retry_s = elector, retry_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, and let another controller lead."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._elector.release()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._elector.step()
            except Exception as error:  # a term without renewals lapses by itself
                log.exception("the election failed", error=str(error), fix="this is a defect; report it with the log")
            self._stop.wait(self._retry_s)
