"""The handling of an alert: evidence, helpful proposals, their effects, and the verification of the cause's end.

The actions propose at every tick anyway. To follow an alert is to find the proposals requested by its runbook for its
object. Nothing here changes a decision.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf, isfinite
from typing import Any

import structlog

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.explain.proposals import Answer as Verdict
from autopilot.explain.proposals import answer_of, code_words, refusing_codes
from autopilot.oncall.alertmanager import Reader
from autopilot.oncall.book import AlertBook, AlertRecord, Answer, Stage
from autopilot.oncall.queries import Asker, QueryError, Series
from autopilot.oncall.runbook import Runbook, bound
from autopilot.records.audit.log import AuditError
from autopilot.records.journal.alerts import AlertStep
from autopilot.service.published import Published

MOST_QUERIES = 200
"""Queries of one round; the rest waits for the next."""

LOOK_EVERY_S = 0.5
"""Longest wall time between a delivery and the look at it, if no tick ends meanwhile."""

ASKS_AGAIN_S = 30.0
"""Wall time between two questions to the Alertmanager."""

_FOR_A_PERSON = frozenset({Stage.PROPOSED, Stage.NO_RUNBOOK, Stage.NOT_VERIFIED})

EFFECTS_ENDED = "the effects ended"
MOST_NAMED = 3
"""Idle work named by a reason."""

_FINAL = frozenset({Stage.ENDED, Stage.NO_RUNBOOK, Stage.VERIFIED})

log: Any = structlog.get_logger("oncall")


class Round:
    """One look at all open alerts, after one tick. The same query is asked once."""

    def __init__(self, published: Published, runbooks: Mapping[str, Runbook], ask: Asker) -> None:
        self.published, self._runbooks, self._ask = published, runbooks, ask
        self.now_s = published.observation.now_s
        self._known: dict[str, Series | str] = {}
        self._pools = _pools(published.observation.snapshot)

    @cached_property
    def _owners(self) -> dict[str, tuple[str, str]]:
        """(tenant, queue) of each workload."""
        return _owners(self.published.observation.snapshot)

    def look(self, alert: AlertRecord) -> AlertRecord:
        """The alert as it is now."""
        if not alert.firing:
            return alert.ended(resolved(alert), self.now_s)
        book = self._runbooks.get(alert.name)
        if book is None:
            reason = f"there is no runbook for {alert.name}; a person must act"
            return alert.to(Stage.NO_RUNBOOK, reason, self.now_s)
        if not alert.evidence and self._may_ask(book):
            alert = alert.to(alert.stage, alert.reason, self.now_s, evidence=self.evidence(book, alert.labels))
        if alert.stage not in _FINAL and (acting := self._sent(alert, book)) is not None:
            return acting
        if alert.stage == Stage.ACTING:
            return self._acting(alert, book)
        if alert.stage == Stage.VERIFYING:
            return self._verified(alert, book)
        return alert if alert.stage in _FINAL else self._proposed(alert, book)

    def evidence(self, book: Runbook, labels: Mapping[str, str]) -> tuple[Answer, ...]:
        """The answers to the queries of a runbook for the labels of an alert."""
        found = []
        for each in book.front.diagnosis:
            query = bound(each.query, labels)
            if query is None:
                problem = f"the alert has no label {book.front.subject or 'that the query needs'}"
                found.append(Answer(each.title, each.query, each.unit, self.now_s, problem=problem))
                continue
            answer = self._answer(query)
            known = (answer, "") if isinstance(answer, tuple) else ((), answer)
            found.append(Answer(each.title, query, each.unit, self.now_s, *known))
        return tuple(found)

    def _may_ask(self, book: Runbook) -> bool:
        return len(self._known) + len(book.front.diagnosis) <= MOST_QUERIES

    def _answer(self, query: str) -> Series | str:
        """The series of a query, or the reason for their absence."""
        if query not in self._known:
            try:
                self._known[query] = self._ask(query)
            except QueryError as error:
                self._known[query] = str(error)
        return self._known[query]

    def _proposed(self, alert: AlertRecord, book: Runbook) -> AlertRecord:
        """Look for proposals requested by the runbook."""
        if not book.front.actions:
            needs = "nobody has to act" if alert.labels.get("severity") == "none" else "a person must act"
            reason = f"the runbook asks for no action of the controller: {needs}"
            return alert.to(Stage.WAITING, reason, self.now_s)
        decision, related = self.published.decision, self._related(alert, book)
        waiting = [
            each
            for each in related
            if answer_of(each, decision.halted) in {Verdict.NEEDS_APPROVAL, Verdict.RECOMMENDED}
        ]
        if waiting:
            waiting.sort(key=lambda each: -each.benefit_gpu_s)
            approvable = any(answer_of(each, decision.halted) == Verdict.NEEDS_APPROVAL for each in waiting)
            reason = (
                "approve or reject the recommendation"
                if approvable
                else "recommended only: the mode takes no approvals" + self._who_may(alert, book)
            )
            names = tuple(each.recommendation for each in waiting[:5])
            return alert.to(Stage.PROPOSED, reason, self.now_s, proposals=names)
        if alert.stage == Stage.NOT_VERIFIED:
            return alert
        if self.now_s < alert.verify_by_s < inf:  # recommendations beside the effects are gone
            reason = EFFECTS_ENDED + self._who_may(alert, book)
            return alert.to(Stage.VERIFYING, reason, self.now_s, proposals=alert.acted)
        reason = self._why_nothing(book, related) + self._who_may(alert, book)
        return alert.to(Stage.WAITING, reason, self.now_s, proposals=())

    def _related(self, alert: AlertRecord, book: Runbook) -> list[Proposal]:
        """The proposals of this tick requested by the runbook and about the alert's object."""
        return [each for each in self.published.decision.plan.proposals if self._concerns(each, alert, book)]

    def _sent(self, alert: AlertRecord, book: Runbook) -> AlertRecord | None:
        """The alert with the proposals sent by this tick for it, beside those under way; None without any."""
        if self.published.decision.halted or alert.received_s > self.now_s:  # decided before it came
            return None
        flying = {each.instruction.proposal_id for each in self.published.memory.effects.in_flight.values()}
        under_way, known = (alert.proposals, alert.sent) if alert.stage == Stage.ACTING else ((), ())
        plans = [each for each in self._related(alert, book) if each.accepted and each.id in flying]
        if {each.id for each in plans} <= set(known):
            return None
        names = [each.recommendation for each in plans]
        acts, acted = (tuple(dict.fromkeys((*before, *names))) for before in (under_way, alert.acted))
        sent = tuple(dict.fromkeys((*known, *(each.id for each in plans))))
        reason = f"{', '.join(acts)}: effects were sent"
        return alert.to(Stage.ACTING, reason, self.now_s, proposals=acts, sent=sent, acted=acted)

    def _acting(self, alert: AlertRecord, book: Runbook) -> AlertRecord:
        """Wait until no effect of the proposals is under way."""
        open_effects = [
            each.instruction.id
            for each in self.published.memory.effects.in_flight.values()
            if each.instruction.proposal_id in alert.sent
        ]
        if open_effects:
            return alert
        until_s = self.now_s + book.front.verification.within
        reason = EFFECTS_ENDED + self._who_may(alert, book)
        return self._verified(alert.to(Stage.VERIFYING, reason, self.now_s, verify_by_s=until_s), book)

    def _verified(self, alert: AlertRecord, book: Runbook) -> AlertRecord:
        """The alert after the check for the end of its cause, by the runbook's query or by the end of the alert."""
        check = book.front.verification
        query = bound(check.query, alert.labels) if check.query else None
        if query:
            series = self._answer(query)
            values = [value for _, value in series] if isinstance(series, tuple) else []
            if values and all(isfinite(value) and check.holds(value) for value in values):
                return alert.to(Stage.VERIFIED, f"verified: {_values(values)}", self.now_s)
        later = self._proposed(alert, book)  # more may help, such as a reclaim after a notice
        if later.stage == Stage.PROPOSED:
            return later
        if self.now_s < alert.verify_by_s:
            return alert
        reason = f"the alert still fires after the effects. {book.front.undo}{self._who_may(alert, book)}"
        return alert.to(Stage.NOT_VERIFIED, reason, self.now_s)

    def _concerns(self, proposal: Proposal, alert: AlertRecord, book: Runbook) -> bool:
        """True if the runbook asks for such a proposal, and its subject is the object of the alert."""
        if proposal.action not in {each.action for each in book.front.actions}:
            return False
        label = book.front.subject
        wanted = alert.labels.get(label, "") if label else ""
        if not wanted:
            return not label  # an alert without the label of its object concerns nothing
        nodes = {slot.node for slot in proposal.slots}
        nodes |= {slot.node for victim in proposal.victims for slot in victim.keeps}
        about = [(proposal.tenant, proposal.queue)]
        if proposal.victims:  # an alert about a tenant or a queue ends when that gives, not when it gets
            about = [self._owners.get(each.workload, ("", "")) for each in proposal.victims if each.how != "move"]
        found: Mapping[str, set[str]] = {
            "tenant": {tenant for tenant, _ in about},
            "queue": {queue for _, queue in about},
            "service": {proposal.subject.name},
            "action": {proposal.action},
            "node": nodes,
            "pool": {self._pools.get(node, "") for node in nodes},
        }
        return wanted in found.get(label, set())

    def _who_may(self, alert: AlertRecord, book: Runbook) -> str:
        """The people able to free the idle GPUs of the alert's tenant or queue, as a sentence to add; "" if none are
        known to be idle.
        """
        label, snapshot = book.front.subject, self.published.observation.snapshot
        if label not in {"tenant", "queue"}:
            return ""
        at, wanted = ("tenant", "queue").index(label), alert.labels.get(label, "")
        records, rows = self.published.memory.idle.records, snapshot.workloads
        idle = [
            (records[uid], name)
            for uid, name in zip(rows.uid.tolist(), rows.id.tolist(), strict=True)
            if uid in records and records[uid].gone_s == inf and self._owners[name][at] == wanted
        ]
        if not idle:
            return ""
        idle.sort(key=lambda each: (-each[0].gpus, each[1]))
        words = ", ".join(f"{name} ({record.gpus:g} GPUs)" for record, name in idle[:MOST_NAMED])
        more = f" and {len(idle) - MOST_NAMED} more" if len(idle) > MOST_NAMED else ""
        return f". Idle: {words}{more}; its owner or an admin of its queue may stop it, as the runbook says"

    def _why_nothing(self, book: Runbook, related: Sequence[Proposal]) -> str:
        halted = self.published.decision.halted
        if halted:
            return f"nothing acts: {halted}"
        actions = " or ".join(each.action for each in book.front.actions)
        if not related:
            return f"nothing is proposed for it now, by {actions}"
        first = max(related, key=lambda each: each.benefit_gpu_s)
        if first.accepted:
            return f"{first.recommendation} was decided before the alert came"
        codes = set(refusing_codes(first))
        refusals = [each for each in first.verdicts if not each.allowed and each.code in codes]
        words = "; ".join(code_words(each.code, each.value, each.threshold) for each in refusals)
        return f"{first.recommendation} is refused: {words}"


class Follower:
    """Follows all open alerts in a thread of its own, so a slow Prometheus delays no tick and no delivery."""

    def __init__(
        self,
        book: AlertBook,
        runbooks: Mapping[str, Runbook],
        ask: Asker,
        next_tick: Callable[[Published | None, float], Published | None],
        record: Callable[[Sequence[AlertStep]], None] = lambda _: None,
        fires: Reader | None = None,
    ) -> None:
        """`next_tick(last, timeout_s)` returns a tick newer than `last`, or None after the time.

        `record` keeps the steps; if it raises `AuditError`, nothing has happened, and the next look tries again.
        `fires` lists the firing alerts. Undelivered ones are taken after the start and after `missed`.
        """
        self.book, self.runbooks, self.ask, self._next_tick = book, runbooks, ask, next_tick
        self._record, self._fires = record, fires
        self._missed, self._asks_s, self._problem = True, 0.0, ""
        self.waiting = 0  # alerts waiting for a person, at the last look
        self.revision = 0  # counts the looks with a change of an alert
        self._stopped, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncall", daemon=True)

    def wake(self) -> None:
        """Look now: an alert was delivered."""
        self._woken.set()

    def missed(self) -> None:
        """A delivery was truncated: ask for the firing alerts, now."""
        self._missed, self._asks_s = True, 0.0

    def catch_up(self, now_s: float) -> None:
        """Receive firing alerts without a delivery, and end those gone from the Alertmanager.

        Without an answer, nothing ends, and it is asked again.
        """
        if self._fires is None or time.monotonic() < self._asks_s:
            return
        self._asks_s = time.monotonic() + ASKS_AGAIN_S
        if missed := self._missed:
            self._missed = False
        known = [each for each in self.book.open_alerts() if each.firing]  # before it is asked: later ones are new
        if not missed and not known:
            return
        try:
            found = self._fires()
            changed = self.book.receive(found.active, now_s) if missed else 0
            had = self.book.listed(found.keys)
        except InputError as error:
            self._missed = self._missed or missed
            if str(error) != self._problem:
                log.warning("open alerts cannot be read", error=str(error), again_in_s=ASKS_AGAIN_S)
            self._problem = str(error)
            return
        self._problem = ""
        if changed:
            log.info("alerts that were not delivered", alerts=changed)
        gone = [each for each in known if found.whole and each.key in had - found.keys]
        self._move([(each, each.ended(f"{resolved(each)}; Alertmanager has it no more", now_s)) for each in gone])

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current look."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(15.0)

    def close(self) -> None:
        """Stop, and close the book."""
        self.stop()
        self.book.close()

    def _run(self) -> None:
        last: Published | None = None
        while not self._stopped.is_set():
            latest = self._next_tick(last, LOOK_EVERY_S)
            woken = self._woken.is_set()
            self._woken.clear()
            last = latest or last
            if last is None or (latest is None and not woken):
                continue
            try:
                self.catch_up(last.observation.now_s)
                self.look(last)
            except (InputError, AuditError) as error:
                log.warning("alerts cannot be followed", error=str(error))
            except Exception as error:  # a defect here must not end the thread
                log.exception("alerts cannot be followed", error=f"{type(error).__name__}: {error}")

    def look(self, published: Published) -> None:
        """Follow every open alert once."""
        alerts = self.book.open_alerts()
        if not alerts:
            self.waiting = 0
            return
        one = Round(published, self.runbooks, self.ask)
        looked = [one.look(each) for each in alerts]
        moved = [(before, after) for before, after in zip(alerts, looked, strict=True) if after != before]
        self.waiting = sum(each.stage in _FOR_A_PERSON for each in looked)
        self._move(moved)

    def _move(self, moved: Sequence[tuple[AlertRecord, AlertRecord]]) -> None:
        """Record and keep the changes."""
        if not moved:
            return
        self._record([step for before, after in moved for step in after.steps_since(before)])
        self.book.keep([after for _, after in moved])
        self.revision += 1
        for before, after in moved:
            if (before.stage, before.proposals) != (after.stage, after.proposals):
                log.info("alert", alert=after.name, fingerprint=after.fingerprint, **after.position)


def resolved(alert: AlertRecord) -> str:
    """The words for a resolved alert, with the actions before that."""
    return (
        f"the alert resolved after {', '.join(alert.acted)}" if alert.acted else "the alert resolved without an action"
    )


def _pools(snapshot: ClusterSnapshot) -> dict[str, str]:
    """The pool of each node."""
    names = snapshot.names.pools
    return {
        node: names[pool] if pool >= 0 else ""
        for node, pool in zip(snapshot.nodes.id.tolist(), snapshot.nodes.pool.tolist(), strict=True)
    }


def _owners(snapshot: ClusterSnapshot) -> dict[str, tuple[str, str]]:
    """(tenant, queue) of each workload."""
    work, tenants, queues = snapshot.workloads, snapshot.names.tenants, snapshot.queues.id.tolist()
    rows = zip(work.id.tolist(), work.tenant.tolist(), work.queue.tolist(), strict=True)
    return {
        name: (tenants[tenant] if tenant >= 0 else "", queues[queue] if queue >= 0 else "")
        for name, tenant, queue in rows
    }


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values[:5])
