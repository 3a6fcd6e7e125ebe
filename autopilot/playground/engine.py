"""The engine of the playground: Kueue's rules, and, with the autopilot acting, its admission checks and gates as well.

`Shown` starts work by itself, as `simulate --engine kueue` does. `Checked` reserves quota only; work starts once the
check of its queue is Ready, on the nodes named by the check. It follows Kueue 0.19 as recorded: a gated or inactive
Workload is in no queue, Retry evicts and gives quota back, and a check in contradiction to the flavor ends the
Workload.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from heapq import heappush
from typing import Any

from actuators.kubernetes.levers.check_state import effect_of, stop_reason
from apiserver.kueue.podsets import Addition, Conflict
from autopilot.contract.annotations import CHECK, CONTROLLER
from autopilot.core.quota.ledger import ALL
from autopilot.core.quota.rules import cohort
from autopilot.core.quota.rules.base import Claim
from autopilot.playground import steps
from autopilot.playground.controller_manager import ControllerManager
from autopilot.playground.entries import PENDING, REJECTED, RETRY, Entry, Placement, Surroundings
from autopilot.playground.shares import find_place
from autopilot.playground.steps import Step
from autopilot.playground.times import stamp
from simulator.baselines.kueue import Kueue
from simulator.specs.clusterqueues import QueueSpec
from simulator.world.placing import find_spot
from simulator.world.work import Shape

Obj = dict[str, Any]


class Shown(Kueue):
    """The engine, with the API brought up to date after each instant of it."""

    def __init__(self, queues: Sequence[QueueSpec]) -> None:
        super().__init__(queues)
        self.after: Callable[[float], None] | None = None

    def decide(self, now_s: float) -> None:
        """Let the engine act, then show the new state."""
        self._act(now_s)
        if self.after is not None:
            self.after(now_s)

    def _act(self, now_s: float) -> None:
        super().decide(now_s)

    def preemptor(self, job: int) -> int:
        """The job waiting for `job` to leave; -1 for none."""
        return next((row for row, each in self._landing.items() if job in each.victims), -1)


class Checked(Shown):
    """The engine of queues with our admission check."""

    def __init__(self, queues: Sequence[QueueSpec], *, gate: bool = True) -> None:
        """`gate`: the work of the scenario carries our gate annotation."""
        super().__init__(queues)
        self._gate = gate
        self.entries: dict[int, Entry] = {}
        self._unplaced: dict[int, Placement] = {}
        self._growing: dict[int, None] = {}  # elastic gangs with fewer GPUs than their Job requests
        self._stopping: dict[int, None] = {}  # evicted, and their pods are not told yet
        self.around: Surroundings
        self.manager: ControllerManager
        self.tell: Callable[[Step], None] = lambda _step: None
        self.later: Callable[[float, Callable[[float], None]], None] = lambda _at_s, _action: None

    # --- what is asked --------------------------------------------------------------------

    def entry(self, job: int) -> Entry:
        """The entry of a job, present from its submission on."""
        found = self.entries.get(job)
        if found is None:
            row = self._fresh(max(self._cluster.jobs.submit_s[job], 0.0))
            found = self.entries[job] = Entry(self._gates(job), row=row)
        return found

    def _gates(self, job: int) -> str:
        """The gates of work of the scenario."""
        return CONTROLLER if self._gate and self._cluster.jobs.service[job] < 0 else ""

    def open(self, job: int, gates: str) -> None:
        """A person's Job: `gates` are those of its annotation."""
        self.entries[job] = Entry(gates, row=self._fresh(self._cluster.jobs.submit_s[job]))

    def reserved(self, job: int) -> bool:
        """True if it holds quota."""
        return job in self._running

    def _waits(self, job: int) -> bool:
        entry = self.entry(job)
        idle = job not in self._running and job not in self._stopping and job not in self._cluster.parked
        return idle and super()._waits(job) and entry.active and not (entry.gates or entry.over or entry.refused)

    # --- what people and the autopilot write ------------------------------------------------

    def set_gates(self, job: int, gates: str, now_s: float) -> None:
        """Gates were removed; without one it enters its queue."""
        entry = self.entry(job)
        if gates == entry.gates:
            return
        entry.gates = gates
        self.tell(steps.Gated(now_s, job, gates))
        self._offer(job)

    def set_active(self, job: int, now_s: float, *, active: bool, effect: str = "") -> None:
        """`spec.active` was written: false evicts it and keeps it out of its queue, true lets it in again, unless a
        check rejected it.

        `effect`: the instruction behind it.
        """
        entry = self.entry(job)
        if active == entry.active:
            return
        entry.active = active
        self.tell(steps.Switched(now_s, job, active))
        if active:
            if entry.refused:
                return
            entry.by_owner = False
            self._cluster.resume(job, now_s)
            self._offer(job)
            return
        self._evict_for(job, steps.DEACTIVATED, "The workload is deactivated", now_s, effect=effect)

    def set_checks(self, job: int, rows: Sequence[Obj], now_s: float) -> None:
        """A controller of checks wrote a state."""
        entry = self.entry(job)
        entry.row = next((dict(each) for each in rows if each["name"] == CHECK), entry.row)
        entry.others = [dict(each) for each in rows if each["name"] != CHECK]
        self.tell(steps.Checked(now_s, job, entry.rows()))
        if job not in self._running:
            return
        refused = [each for each in entry.rows() if each["state"] == REJECTED]
        retried = [each for each in entry.rows() if each["state"] == RETRY]
        if refused:
            message = f"The workload is deactivated due to {_named(refused, REJECTED)}"
            entry.active, entry.refused = False, True
            self.tell(steps.Switched(now_s, job, False))
            self._evict_for(job, steps.REJECTED, message, now_s)
        elif retried:
            waits_s = max(each.get("requeueAfterSeconds") or 0 for each in retried)
            if waits_s:
                self.later(now_s + waits_s, partial(self._retry, job, retried))
            else:
                self._retry(job, retried, now_s)
        elif entry.ready and not entry.admitted:
            self._admit(job, now_s)

    def _retry(self, job: int, retried: Sequence[Obj], now_s: float) -> None:
        """A check asks for another try; Kueue waited `requeueAfterSeconds` first."""
        again = any(each["state"] == RETRY for each in self.entry(job).rows())
        if job in self._running and again:
            message = f"Evicted due to {_named(retried, RETRY)}"
            reasons = [stop_reason(each["message"]) for each in retried]
            moving = any(each is not None and each.continues_elsewhere for each in reasons)
            effect = next((found for each in retried if (found := effect_of(each["message"]))), "")
            self._evict_for(job, steps.EVICTED_FOR_CHECK, message, now_s, moving=moving, effect=effect)

    def set_width(self, job: int, gpus: int, gives: Collection[int], now_s: float) -> None:
        """Its Job asks for another number of GPUs. `gives`: those of leaving pods; further ones go from the end."""
        cluster, entry = self._cluster, self.entry(job)
        if gpus == self._width(job):
            return
        entry.gpus = gpus
        self.tell(steps.Widened(now_s, job, gpus))
        held, claim = cluster.held[job], self._running.get(job)
        if held is not None and gpus < len(held.gpus):
            kept = [gpu for gpu in held.gpus if gpu not in gives][:gpus]
            if cluster.resize(job, kept, now_s) is None:
                self._rebook(job, gpus)
                self.on_change(now_s)
        elif held is not None:
            self._growing[job] = None
        elif claim is not None and self._may_hold(claim, gpus):
            self._rebook(job, gpus)
            self.on_change(now_s)
        elif claim is not None:  # its reservation is made anew
            self._book(self._running.pop(job), -1)
            self._unplaced.pop(job, None)
            self._reset(job, now_s)
            self.tell(steps.Left(now_s, job))
            self.on_change(now_s)
        self._offer(job)

    def _width(self, job: int) -> int:
        """GPUs requested by its Job."""
        return self.entry(job).gpus or self._cluster.jobs.shape_of(job).gpus

    def _shape(self, job: int) -> Shape:
        """Its request at the width of its Job."""
        return self._cluster.jobs.shape_of(job)._replace(gpus=self._width(job))

    def _claim(self, job: int) -> Claim:
        claim, entry = super()._claim(job), self.entry(job)
        gpus = float(entry.gpus) if entry.gpus else claim.gpus
        return claim._replace(gpus=gpus, least_gpus=gpus, member_gpus=gpus)

    def _may_hold(self, claim: Claim, gpus: float) -> bool:
        """True if there is quota for the claim at this width (GPUs)."""
        more = gpus - claim.gpus
        wider = claim._replace(gpus=more, least_gpus=more, member_gpus=more)
        return more <= 0 or cohort.may_start(self._books, wider) is None

    def _rebook(self, job: int, gpus: int) -> None:
        """It counts with another number of GPUs."""
        claim = self._running.get(job)
        if claim is not None:
            self._book(claim, -1)
            self._running[job] = claim = claim._replace(gpus=float(gpus), least_gpus=gpus, member_gpus=gpus)
            self._book(claim, 1)

    def _grow(self, job: int, now_s: float) -> None:
        """More pods of a running gang: its quota first, then room on its nodes."""
        cluster, entry, claim = self._cluster, self.entry(job), self._running.get(job)
        held, wide = cluster.held[job], self._width(job)
        if held is None or claim is None or entry.placement is None or wide <= len(held.gpus):
            self._growing.pop(job)
            return
        more = wide - len(held.gpus)
        if not self._may_hold(claim, wide):
            return
        shape = cluster.jobs.shape_of(job)._replace(gpus=more)
        spot = find_spot(cluster.hardware, shape, self.around.nodes(entry.placement))
        if spot is not None and cluster.resize(job, [*held.gpus, *spot.gpus], now_s) is None:
            self._growing.pop(job)
            self._rebook(job, wide)

    # --- the life of work -------------------------------------------------------------------

    def on_submit(self, job: int, now_s: float) -> None:
        """It enters its queue unless something holds it back."""
        entry = self.entry(job)
        self.tell(steps.Checked(now_s, job, entry.rows()))
        if entry.gates:
            self.tell(steps.Gated(now_s, job, entry.gates))
        super().on_submit(job, now_s)

    def on_requeue(self, job: int, now_s: float) -> None:
        """It has left its GPUs: a replica is another pod with another Workload."""
        entry = self.entry(job)
        if self._cluster.jobs.service[job] >= 0:
            self.entries[job] = entry = Entry(row=self._fresh(now_s))
            self.tell(steps.Checked(now_s, job, entry.rows()))
        elif entry.by_owner and job not in self._cluster.parked:
            entry.by_owner, entry.active = False, True  # its owner is back
            self.tell(steps.Switched(now_s, job, True))
        if entry.admitted:
            self._reset(job, now_s)
        super().on_end(job, now_s)
        self._offer(job)

    def on_end(self, job: int, now_s: float) -> None:
        """It is over."""
        self._unplaced.pop(job, None)
        super().on_end(job, now_s)

    def _act(self, now_s: float) -> None:
        super()._act(now_s)
        for job in list(self._unplaced):
            self._place(job, now_s)
        for job in list(self._growing):
            self._grow(job, now_s)

    def _offer(self, job: int) -> None:
        """Put it into its queue."""
        if not self._waits(job):
            return
        group = self._group(job)
        self._lowest = min(self._lowest, -group[1])
        heappush(self._waiting.setdefault(group, []), (self._cluster.jobs.submit_s[job], job))
        self._open.setdefault(group[0], set()).add(group)
        self._held_up.discard(group[0])

    # --- quota ------------------------------------------------------------------------------

    def _fits(self, claim: Claim, _targets: Sequence[Any] = ()) -> bool:
        """Kueue counts quota; room is the task of the check."""
        return True

    def _start(self, claim: Claim, now_s: float) -> bool:
        """Reserve quota; start if the checks are ready already."""
        found = self._model(claim)
        if found is None:
            return False
        job, (model, kinds) = claim.row, found
        entry = self.entry(job)
        held = claim._replace(start_s=now_s, kinds=kinds)
        self._running[job] = held
        self._book(held, 1)
        entry.model = model
        if entry.state == RETRY:
            self._reset(job, now_s)
        self.tell(steps.Reserved(now_s, job, model))
        if entry.ready:
            self._admit(job, now_s)
        return True

    def _model(self, claim: Claim) -> tuple[int, tuple[int, ...]] | None:
        """The first GPU model with quota for a gang (the order of the flavors), and its kinds in the books."""
        shape, hardware = self._cluster.jobs.shape_of(claim.row), self._cluster.hardware
        for code in dict.fromkeys(sorted(hardware.model_of)):
            if shape.models and not shape.models >> code & 1:
                continue
            kinds = tuple(sorted({ALL, self._books.kind_of_model[code]}))
            if cohort.may_start(self._books, claim._replace(kinds=kinds)) is None:
                return code, kinds
        return None

    def _evict(self, job: int, newcomer: int, now_s: float) -> None:
        """Kueue preempts it."""
        self._evict_for(job, steps.PREEMPTED, "", now_s, by=newcomer)

    def _evict_for(self, job: int, reason: str, message: str, now_s: float, by: int = -1, **how: Any) -> None:
        """Kueue evicts it: its quota is free at once, its GPUs with the end of its pods. `how`: as of `_stop`."""
        entry, claim = self.entry(job), self._running.pop(job, None)
        if claim is not None:
            self._book(claim, -1)
        self.tell(steps.Told(now_s, job, reason, message, by))
        self._reset(job, now_s)
        parks = not entry.active and self.around.away(job)
        if self._cluster.held[job] is not None:
            entry.by_owner = parks
        self._stop(job, now_s, park=parks, **how)
        self.on_change(now_s)

    def _stop(self, job: int, now_s: float, **how: Any) -> None:
        """Its pods are deleted, by Kueue for replicas, else by the Job controller; without pods it left.

        `how`: as of `Cluster.evict`.
        """
        number, replica = self._cluster.incarnation[job], self._cluster.jobs.service[job] >= 0
        there = self._cluster.held[job] is not None or job in self._unplaced
        self._stopping[job] = None

        def stop(then_s: float) -> None:
            self._stopping.pop(job, None)
            if self._cluster.incarnation[job] != number:  # it stopped by itself meanwhile
                self._offer(job)
            elif self.entry(job).admitted:  # it was resumed meanwhile
                return
            elif self._cluster.held[job] is not None:
                self._cluster.evict(job, then_s, **how)
            else:
                self._unplaced.pop(job, None)
                self.tell(steps.Left(then_s, job))
                self._offer(job)

        if there and not replica:
            self.manager.stop(now_s, stop)
        else:
            stop(now_s)

    # --- checks -----------------------------------------------------------------------------

    def _fresh(self, now_s: float) -> Obj:
        at = stamp(self.around.start_s + now_s)
        return {"name": CHECK, "state": PENDING, "message": "", "lastTransitionTime": at}

    def _reset(self, job: int, now_s: float) -> None:
        """Checks go back to Pending after an eviction."""
        entry = self.entry(job)
        entry.admitted, entry.model = False, -1
        rows = [self._again(each, now_s) for each in entry.rows()]
        entry.row, entry.others = rows[0], rows[1:]
        self.tell(steps.Checked(now_s, job, entry.rows()))

    def _again(self, row: Obj, now_s: float) -> Obj:
        if row["state"] == PENDING:
            return row
        fresh = self._fresh(now_s) | {
            "name": row["name"],
            "message": f"Reset to Pending after eviction. Previously: {row['state']}",
        }
        if "requeueAfterSeconds" in row:
            fresh["requeueAfterSeconds"] = row["requeueAfterSeconds"]
        if row["state"] == RETRY:
            fresh["retryCount"] = row.get("retryCount", 0) + 1
        return fresh

    def _admit(self, job: int, now_s: float) -> None:
        """Every check is ready: the gang is placed, now or once there is room on its nodes."""
        entry = self.entry(job)
        try:
            placement = self._placement(job, entry)
        except Conflict as error:
            entry.over = True
            claim = self._running.pop(job)
            self._book(claim, -1)
            self.tell(steps.Misplaced(now_s, job, str(error)))
            self.on_change(now_s)
            return
        self._resume(job, placement, now_s)

    def _resume(self, job: int, placement: Placement, now_s: float) -> None:
        """Its Job is resumed, and the Job controller makes its pods."""
        entry = self.entry(job)
        entry.admitted, entry.placement = True, placement
        self.tell(steps.Admitted(now_s, job, placement.selector, placement.tolerations))

        def make(then_s: float) -> None:
            if entry.admitted and entry.placement is placement:
                self.tell(steps.Made(then_s, job))
                self._unplaced[job] = placement
                self._place(job, then_s)

        if self._cluster.jobs.service[job] >= 0:
            make(now_s)  # its pod is there, behind the gate of Kueue
        else:
            self.manager.make(now_s, make)

    def _placement(self, job: int, entry: Entry) -> Placement:
        """The template with the labels of the flavor and the updates of the checks. Raises Conflict."""
        flavor = Addition(node_selector=self.around.flavor_labels(entry.model))
        for row in entry.rows():
            for update in (row.get("podSetUpdates") or [])[:1]:
                more = Addition(
                    node_selector=dict(update.get("nodeSelector") or {}),
                    tolerations=list(update.get("tolerations") or []),
                )
                try:
                    flavor.merge(more)
                except Conflict as error:
                    raise Conflict(f'in admission check "{row["name"]}": {error}') from None
        spec = self.around.template(job)["spec"]
        base = Addition(
            node_selector=dict(spec.get("nodeSelector") or {}), tolerations=list(spec.get("tolerations") or [])
        )
        base.merge(flavor)
        return Placement(base.node_selector, tuple(base.tolerations))

    def _place(self, job: int, now_s: float) -> None:
        """Bind the pods of a gang on its nodes, all or none."""
        cluster, placement = self._cluster, self._unplaced[job]
        if job not in cluster.pending:
            self._unplaced.pop(job)
            return
        spot = find_place(cluster.hardware, self._shape(job), self.around.nodes(placement))
        if spot is not None and cluster.start(job, spot.gpus, now_s, instances=spot.instances) is None:
            self._unplaced.pop(job)


def _named(rows: Sequence[Obj], state: str) -> str:
    parts = [f'"{each["name"]}"' + (f" ({each['message']})" if each.get("message") else "") for each in rows]
    return f"AdmissionCheck{'s' if len(rows) > 1 else ''} in {state} state: {'; '.join(parts)}"
