"""Keeps our custom resources up to date, in a thread of its own: recommendations, approvals, the status of the policy.

A tick never waits for it. It works on the newest tick alone; unwritten changes of an older one are dropped. Its writes
are bounded: `PER_MINUTE`, and at most `BURST` at once.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from actuators.kubernetes.events import event_of
from actuators.kubernetes.wire import why_unfit
from autopilot.contract.annotations import APPROVE, EPOCH, MANAGER, REJECT
from autopilot.crds.approvals import VERBS, Answered, Approvals, Failures, Written, asked_of
from autopilot.crds.documents import stamp
from autopilot.crds.names import (
    GROUP,
    RECOMMENDATION_KIND,
    RECOMMENDATIONS,
    VERSION,
    collection,
    path,
)
from autopilot.crds.planning import Kind, There, Write, plan
from autopilot.kube.client import JSON
from autopilot.kube.cluster_api import MERGE, PATCH, Answer
from autopilot.service.published import CollectorHealth, Published, Publisher
from autopilot.settings import API_VERSION
from collectors.kubernetes.cache import Changes, Health
from collectors.kubernetes.kinds import Kind as Listed
from collectors.kubernetes.wire import Object

Obj = dict[str, Any]
NAME = "control-resources"
PER_MINUTE, BURST = 240.0, 60.0
"""Writes on average and at once, below client-go's default limit of a client (5 a second)."""
LOOK_S = 2.0
"""It looks at least this often."""
RETRY_S = 5.0
"""After a failed write."""
ANSWERS = ("approved", "rejected", "refused")
LABELS = {"app.kubernetes.io/managed-by": MANAGER}

log: Any = structlog.get_logger("control-resources")


class RecommendationObject(Object):
    """A Recommendation as it is listed."""

    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


KIND = Listed(RECOMMENDATIONS, GROUP, VERSION, RecommendationObject, namespaced=False)


class Listing(Protocol):
    """The list of Recommendations (`collectors.kubernetes.source.Cluster`)."""

    def drain(self, kind: Listed) -> Changes:
        """Changes since the last call."""
        ...

    def health(self) -> list[Health]:
        """State of the list."""
        ...


class Api(Protocol):
    """The API server (`autopilot.kube.cluster_api.ClusterApi`)."""

    def get(self, path: str) -> Answer:
        """Read."""
        ...

    def send(self, method: str, path: str, body: Any, media: str = ...) -> Answer:
        """Change."""
        ...


class Keeper:
    """Recommendations and people's answers to them. `extra` is asked after each tick, for other objects."""

    def __init__(
        self,
        listing: Listing,
        api: Api,
        publisher: Publisher,
        approvals: Approvals,
        most: int,
        *,
        extra: Sequence[Callable[[Published], str]] = (),
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: objects of open recommendations; 0: none are kept."""
        self._listing, self._api, self._publisher, self._approvals = listing, api, publisher, approvals
        self._most, self._extra, self._steady_s = most, extra, steady_s
        self._there: dict[str, There] = {}
        self._left, self._filled_s = BURST, steady_s()
        self._retry_s = float("-inf")
        self._planned: Published | None = None  # the last planned tick
        self._stale = False  # something changed since
        self._news, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.health = CollectorHealth(NAME)
        self.closers: list[Callable[[], None]] = []
        self.writes = 0  # sent since the start
        self.refused = 0  # of these, refused by the API server
        self._answers = dict.fromkeys(ANSWERS, 0)
        self.due = 0  # writes left for later by the last look

    # --- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, and follow the ticks."""
        self._publisher.follow(lambda _: self._news.set())
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def wake(self, _hurry: bool = False) -> None:
        """Something changed in the list."""
        self._news.set()

    def close(self) -> None:
        """End after the write under way."""
        self._stopped.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(timeout=15.0)
        for close in self.closers:
            close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._news.wait(LOOK_S)
            self._news.clear()
            if self._stopped.is_set():
                return
            try:
                self.look()
            except Exception as error:  # a defect here must not end the thread
                self._failed(f"{type(error).__name__}: {error}")
                log.exception("control resources failed", error=str(error))
                self._stopped.wait(RETRY_S)

    def look(self) -> None:
        """Bring the objects to the state of the newest tick, as far as the rate allows."""
        latest, changed = self._publisher.latest, self._take_in()
        if latest is None or not latest.leads:
            return
        self._stale |= changed or latest is not self._planned
        problem = next((each for each in (extra(latest) for extra in self._extra) if each), "")
        problem = self._recommend(latest) or problem if self._most else problem
        if problem:
            self._failed(problem)
        else:
            now_s = latest.observation.now_s
            self.health = CollectorHealth(NAME, now_s, now_s if not self.due else self.health.fresh_s)

    def _failed(self, problem: str) -> None:
        latest = self._publisher.latest
        now_s = latest.observation.now_s if latest is not None else float("nan")
        self.health = CollectorHealth(NAME, now_s, self.health.fresh_s, gaps=1, problem=problem)

    # --- the present state ----------------------------------------------------------------

    def _take_in(self) -> bool:
        """Take in the list; true if it differs from our writes."""
        changes, now_s, changed = self._listing.drain(KIND), self._steady_s(), False
        for gone in changes.gone:
            known = self._there.get(gone.metadata.name)
            if known is not None and known.uid == gone.metadata.uid:
                del self._there[gone.metadata.name]
                changed = True
        for each in changes.there:
            meta = each.metadata
            known = self._there.get(meta.name)
            same = known is not None and known.uid == meta.uid
            found = There(
                meta.name,
                meta.uid,
                getattr(each, "spec", None) or {},
                getattr(each, "status", None) or {},
                dict(meta.annotations or {}),
                known.written_s if same and known is not None else now_s,
                known.ended_s if same and known is not None else None,
            )
            changed |= known is None or (known.uid, known.status) != (found.uid, found.status)
            self._there[meta.name] = found
        return changed

    # --- recommendations ------------------------------------------------------------------

    def _recommend(self, latest: Published) -> str:
        """Answer annotations, then write all due changes; returns the reason for a failure, or ""."""
        health = next(iter(self._listing.health()), None)
        if health is None or not health.synced or health.problem or health.off:
            absent = health is not None and health.off
            fix = "the cluster does not know the kind Recommendation; apply deploy/crds/" if absent else ""
            return fix or (health.problem if health is not None else "") or "the Recommendations are not listed yet"
        if self._steady_s() < self._retry_s:
            return self.health.problem
        problem = self._answer(latest)
        if not self._stale and not self.due:
            return problem
        self._planned, self._stale = latest, False
        shown, failed = self._publisher.shown, self._publisher.failed_of
        writes = plan(latest, self._there, self._most, self._steady_s(), shown, failed)
        for number, write in enumerate(writes):
            if not self._may_write() or self._stopped.is_set() or not self._leads():
                self.due = len(writes) - number
                return problem
            refused = self._write(write, latest)
            if refused:
                self._retry_s, self.due = self._steady_s() + RETRY_S, len(writes) - number
                return refused
        self.due = 0
        return problem

    def _answer(self, latest: Published) -> str:
        problem = ""
        for there in list(self._there.values()):
            if not {APPROVE, REJECT} & there.annotations.keys():
                continue
            found = self._api.get(path(RECOMMENDATIONS, there.name))
            if found.status == 404:
                continue
            if found.status != 200:
                problem = f"{RECOMMENDATION_KIND} {there.name}: it cannot be read: {found.reason}"
                continue
            why = why_unfit(found.document, Written)
            if why:
                problem = f"{RECOMMENDATION_KIND} {there.name} cannot be read: {why}"
                continue
            try:
                answered = self._approvals.take(found.document, latest)
            except Failures as error:
                problem = str(error)
                continue
            if answered is not None:
                problem = self._settle(there, answered, latest) or problem
            elif asked_of(found.document) is None:
                there.annotations = {}
        return problem

    def _settle(self, there: There, answered: Answered, latest: Published) -> str:
        """Write the answer into the status, then take the annotation off, if it is still the same."""
        refused = self._status(there, {"decision": answered.document}, latest)
        if refused:
            return refused
        if there.answered != answered:  # else only its annotation could not be taken off before
            there.answered = answered
            self._tell(there, answered)
        pointer = "/metadata/annotations/" + VERBS[answered.asked.kind].replace("/", "~1")
        body = [
            {"op": "test", "path": "/metadata/uid", "value": there.uid},
            {"op": "test", "path": pointer, "value": answered.asked.value},
            {"op": "remove", "path": pointer},
            {
                "op": "add",
                "path": "/metadata/annotations/" + EPOCH.replace("/", "~1"),
                "value": str(latest.memory.fence),
            },
        ]
        answer = self._send("PATCH", path(RECOMMENDATIONS, there.name), body, PATCH)
        if answer.status in {200, 404, 422}:  # 422: it says something else by now, and is looked at again
            there.annotations = {}
            return ""
        return f"{RECOMMENDATION_KIND} {there.name}: its annotation cannot be taken off: {answer.reason}"

    def _write(self, write: Write, latest: Published) -> str:
        """One write and its result in `_there`; returns the reason for a refusal, or ""."""
        if write.kind == Kind.CREATE:
            return self._create(write, latest)
        there = self._there[write.name]
        if write.kind != Kind.DELETE:
            return self._status(there, write.status, latest)
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": write.uid}}
        answer = self._send("DELETE", path(RECOMMENDATIONS, write.name), body, JSON)
        if answer.status in {200, 202, 404, 409}:  # 409: another object by now
            self._there.pop(write.name, None)
            return ""
        return f"{RECOMMENDATION_KIND} {write.name}: it cannot be removed: {answer.reason}"

    def _create(self, write: Write, latest: Published) -> str:
        body = {
            "apiVersion": API_VERSION,
            "kind": RECOMMENDATION_KIND,
            "metadata": {
                "name": write.name,
                "labels": LABELS,
                "annotations": {EPOCH: str(latest.memory.fence)},
            },
            "spec": write.spec,
        }
        answer = self._send("POST", collection(RECOMMENDATIONS), body, JSON)
        if answer.status == 409:
            return ""  # the list will show it
        if answer.status != 201:
            return f"{RECOMMENDATION_KIND} {write.name}: it cannot be created: {answer.reason}"
        uid = str((answer.document.get("metadata") or {}).get("uid", ""))
        there = There(write.name, uid, write.spec, {}, {}, self._steady_s())
        self._there[write.name] = there
        return self._status(there, write.status, latest)

    def _status(self, there: There, status: Obj, latest: Published) -> str:
        whole = {**status, "updated": stamp(latest.observation.now_s), "epoch": latest.memory.fence}
        answer = self._send("PATCH", path(RECOMMENDATIONS, there.name, "status"), {"status": whole}, MERGE)
        if answer.status == 404:
            self._there.pop(there.name, None)
            return ""
        if answer.status != 200:
            return f"{RECOMMENDATION_KIND} {there.name}: its status cannot be written: {answer.reason}"
        there.status = {**there.status, **whole}
        if "decision" not in status:
            there.written_s = self._steady_s()
        return ""

    # --- writes ---------------------------------------------------------------------------

    def _tell(self, there: There, answered: Answered) -> None:
        """Report the result of an annotation: in the log, as an Event on the object, and in the metrics."""
        log.info("answered", recommendation=there.name, verdict=answered.verdict, message=answered.message)
        self._answers[answered.verdict.lower()] += 1
        about = {"apiVersion": API_VERSION, "kind": RECOMMENDATION_KIND, "name": there.name, "uid": there.uid}
        verb = answered.asked.kind.value.capitalize()
        reason = answered.verdict if answered.verdict != "Refused" else f"{verb}Refused"
        warning, note = answered.verdict == "Refused", f"{answered.asked.manager}: {answered.message}"
        latest = self._publisher.latest
        now_s = latest.observation.now_s if latest is not None else time.time()  # the clock of a playground is its own
        made = event_of(about, reason, verb, note, now_s, instance=socket.gethostname(), warning=warning)
        if self._api.send("POST", *made, JSON).status != 201:
            log.warning("no Event was written", recommendation=there.name, fix="`autopilot check` lists missing rights")

    def counts(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Writes and answers since the start, as metrics."""
        written: dict[tuple[str, ...], float] = {("written",): float(self.writes - self.refused)}
        written[("refused",)] = float(self.refused)
        answers: dict[tuple[str, ...], float] = {(verdict,): float(count) for verdict, count in self._answers.items()}
        return {"recommendation_writes_total": written, "recommendation_answers_total": answers}

    def _leads(self) -> bool:
        latest = self._publisher.latest
        return latest is not None and latest.leads

    def _may_write(self) -> bool:
        now_s = self._steady_s()
        self._left = min(self._left + (now_s - self._filled_s) * PER_MINUTE / 60.0, BURST)
        self._filled_s = now_s
        return self._left >= 2.0  # a new object takes two

    def _send(self, method: str, target: str, body: Any, media: str) -> Answer:
        self._left -= 1.0
        self.writes += 1
        answer = self._api.send(method, f"{target}?fieldManager={MANAGER}", body, media)
        self.refused += answer.status not in {200, 201, 202}
        return answer
