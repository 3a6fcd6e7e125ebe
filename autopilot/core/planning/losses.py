"""The cost of a stop: the expected loss, the worst case and, afterwards, the actual loss.

A victim can save if its owner declares checkpoints on request, and if the write, with its turn at the store, fits
within the grace. The probability of a save is the share of checkpoints among the answers to earlier requests; that
share is kept per workload and per tenant. A victim without a save loses the time since its last periodic checkpoint, or
since its start. Decisions use the mean of the two outcomes, plus the time of saving and of the restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.losses import Stop
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Cause, Instruction, Loss, Outcome, OutcomeKind
from autopilot.core.model.snapshot import F64, GPU_MILLI, ClusterSnapshot, State, WorkloadTable
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.model.work import entry_milli, known_or
from autopilot.core.planning.earlier_stops import without_gone
from autopilot.core.planning.writers import writers_s

REQUESTS = 16
"""Requests to save counted per workload and per tenant; beyond this, both counts are halved before each request."""

OWN_WEIGHT = 1.0
"""Weight of the prior, in requests: of the tenant's share for a workload, of the policy's prior for a tenant."""

SAVED_S = 1.0
"""A stop that lost at most this much of a gang's progress counts as saved."""

STOP_KEPT_S = 3600.0
"""A stop whose loss is not reported within this time is forgotten."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The cost of stopping each gang now, in GPU-seconds. Shape [workloads]; 0 for work without GPUs."""

    expected_gpu_s: F64  # mean progress to be repeated
    worst_gpu_s: F64  # progress to be repeated if it does not save
    overhead_gpu_s: F64  # GPUs held without progress while it saves and restarts

    @property
    def price_gpu_s(self) -> F64:
        """The cost weighed against the benefit: expected loss plus overhead."""
        return self.expected_gpu_s + self.overhead_gpu_s


def stop_losses(snapshot: ClusterSnapshot, at_s: float, saves_ratio: F64) -> Losses:
    """The cost of stopping each gang at `at_s`. `saves_ratio` [workloads]: the probability of a save."""
    work, held = snapshot.workloads, snapshot.placements
    gpus = np.bincount(held.workload, entry_milli(held) / GPU_MILLI, minlength=len(work.id))
    worst = gpus * _unsaved_s(work, at_s)
    write_s = known_or(work.checkpoint_write_s) * saves_ratio
    return Losses((1.0 - saves_ratio) * worst, worst, gpus * (write_s + known_or(work.restart_s)))


def _unsaved_s(work: WorkloadTable, at_s: float) -> F64:
    """Progress outside of every checkpoint (s): since the last observed checkpoint, else since the start.

    If none was observed and the work states its interval, it is at most one interval. It is 0 for an unknown start.
    """
    since_s = known_or(np.maximum(at_s - np.fmax(work.start_s, work.last_checkpoint_s), 0.0))
    most_s = np.where(np.isnan(work.last_checkpoint_s), work.checkpoint_interval_s, np.nan)
    return np.asarray(np.fmin(since_s, most_s))


def saves_ratio(snapshot: ClusterSnapshot, memory: ControllerMemory, policy: Policy, now_s: float) -> F64:
    """Probability that each gang saves a checkpoint if it is evicted now. Shape [workloads]; 0 if it cannot save."""
    work, rules = snapshot.workloads, policy.preemption
    turn_s = 0.0
    if rules.checkpoint_writers:
        write_s = dict(zip(work.id.tolist(), work.checkpoint_write_s.tolist(), strict=True))
        turn_s = writers_s(memory.effects.in_flight.values(), write_s, snapshot, now_s, policy)[0]
    ratio = np.zeros(len(work.id))
    fits = work.checkpoint_on_request & (turn_s + work.checkpoint_write_s <= rules.grace_s)
    for row in np.flatnonzero(fits).tolist():
        tenant = share(memory.losses.tenant_saves.get(snapshot.names.tenants[int(work.tenant[row])]), rules.saves_prior)
        ratio[row] = share(memory.losses.workload_saves.get(str(work.id[row])), tenant)
    return ratio


def share(counts: tuple[float, float] | None, prior: float) -> float:
    """Estimated share of successes from (requests, successes); `prior` before the first request."""
    asked, saved = counts or (0.0, 0.0)
    return (saved + OWN_WEIGHT * prior) / (asked + OWN_WEIGHT)


# --- afterwards -------------------------------------------------------------------------------------


def remember_stops(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the stops instructed now: evicted or shrunk victims."""
    if not planned.stops:
        return memory
    observation = planned.observation
    work, names = observation.snapshot.workloads, observation.snapshot.names
    tenants = dict(zip(work.id.tolist(), work.tenant.tolist(), strict=True))
    victims = {(made.id, victim.workload): victim for made in planned.plan.proposals for victim in made.victims}
    stops = []
    for effect in planned.stops:
        victim = victims.get((effect.proposal_id, effect.subject.name))
        if victim is not None:
            stops.append(
                Stop(
                    effect.id,
                    effect.proposal_id,
                    effect.subject.name,
                    effect.subject.revision,
                    names.tenants[tenants[effect.subject.name]],
                    observation.now_s,
                    float(victim.gpus),
                    victim.lost_gpu_s,
                    victim.worst_gpu_s,
                    _asked(effect),
                    effect.subject.uid,
                    not victim.contract and _for_others(effect),
                )
            )
    return replace(memory, losses=replace(memory.losses, stops=(*memory.losses.stops, *stops)))


def _asked(effect: Instruction) -> bool:
    """True if the stop waits for a checkpoint. Stops of broken gangs do not count: they do not predict the next one."""
    operation = effect.operation
    return bool(operation.stops and operation.save != Save.SKIP and operation.takes != StopReason.RECOVER)


def _for_others(effect: Instruction) -> bool:
    """True for an eviction to make room for other work."""
    reason = effect.operation.takes
    return effect.operation.stops and reason is not None and reason.for_others


def settle_stops(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the save statistics and the counts of completed stops. Their actual losses are noted in `tick`.

    A stop is complete at a later incarnation or the end of its workload. A stop with a failed effect, or incomplete
    after STOP_KEPT_S, is forgotten. A declined stop counts as a request without a checkpoint; after a stop without a
    possible request the work counts as not saving.
    """
    observation = tick.observation
    if not memory.losses.stops:
        return without_gone(memory, observation.snapshot.workloads)
    work = observation.snapshot.workloads
    rows = {str(name): row for row, name in enumerate(work.id.tolist())}
    outcomes = {outcome.instruction_id: outcome for outcome in observation.outcomes}
    still: list[Stop] = []
    losses: list[Loss] = []
    asked: list[tuple[Stop, bool]] = []
    unasked: list[str] = []
    counts = dict(memory.losses.weighed_stops)
    for stop in memory.losses.stops:
        outcome, row = outcomes.get(stop.instruction_id), rows.get(stop.workload)
        if outcome is not None and outcome.cause == Cause.UNASKED:
            unasked.append(stop.workload)
        elif outcome is not None and outcome.kind == OutcomeKind.DECLINED:
            asked.append((stop, False))
        elif row is not None and _over(stop, row, work):
            lost_gpu_s = float(work.lost_gpu_s[row]) if work.incarnation[row] == stop.incarnation + 1 else np.nan
            losses.append(
                Loss(
                    stop.proposal_id, stop.workload, stop.incarnation, lost_gpu_s, stop.expected_gpu_s, stop.worst_gpu_s
                )
            )
            if stop.weighed:
                counts[stop.uid] = counts.get(stop.uid, 0) + 1
            if stop.asked and not np.isnan(lost_gpu_s):
                asked.append((stop, lost_gpu_s <= SAVED_S * max(stop.gpus, 1.0)))
        elif observation.now_s < stop.at_s + STOP_KEPT_S and not _failed(outcome):
            still.append(stop)
    memory = without_gone(
        replace(memory, losses=replace(memory.losses, stops=tuple(still), weighed_stops=counts)), work
    )
    tick.losses = tuple(losses)
    return _learn(_not_saving(memory, unasked), asked, rows)


def _not_saving(memory: ControllerMemory, unasked: Sequence[str]) -> ControllerMemory:
    """Memory that counts work as not saving if no checkpoint could be requested of it.

    Its answers to later requests correct that. Its tenant is not judged by it: the cluster refused the request.
    """
    if not unasked:
        return memory
    return replace(
        memory,
        losses=replace(
            memory.losses,
            workload_saves={**memory.losses.workload_saves, **dict.fromkeys(unasked, (float(REQUESTS), 0.0))},
        ),
    )


def _over(stop: Stop, row: int, work: WorkloadTable) -> bool:
    ended = int(work.state[row]) in {State.SUCCEEDED, State.FAILED}
    return ended or int(work.incarnation[row]) > stop.incarnation


def _failed(outcome: Outcome | None) -> bool:
    gone = {OutcomeKind.CONFLICT, OutcomeKind.FAILED}
    return outcome is not None and outcome.kind in gone and not outcome.retryable


def _learn(memory: ControllerMemory, asked: list[tuple[Stop, bool]], rows: Mapping[str, int]) -> ControllerMemory:
    """Memory with the answers to requests to save, without entries of vanished workloads."""
    if not asked:
        return memory
    tenants, workloads = dict(memory.losses.tenant_saves), dict(memory.losses.workload_saves)
    for stop, saved in asked:
        tenants[stop.tenant] = _counted(tenants.get(stop.tenant), saved=saved)
        workloads[stop.workload] = _counted(workloads.get(stop.workload), saved=saved)
    workloads = {name: counts for name, counts in workloads.items() if name in rows}
    return replace(memory, losses=replace(memory.losses, tenant_saves=tenants, workload_saves=workloads))


def _counted(counts: tuple[float, float] | None, *, saved: bool) -> tuple[float, float]:
    asked, kept = counts or (0.0, 0.0)
    if asked >= REQUESTS:
        asked, kept = asked / 2, kept / 2
    return asked + 1.0, kept + float(saved)
