"""The simulated cluster: the truth about who runs where, what is done, and what every change costs.

A scheduler asks (`start`, `evict`, ...); the cluster checks every precondition and answers with None, or
with a `Refusal` when it does not do it. What happened is stated to observers as facts (simulator/facts.py).
Times are virtual seconds on the grid of simulator/physics.py. A job's progress counts from the end of its
start-up, in seconds at its full width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapreplace
from math import floor, inf, isnan, nan
from typing import Any

from autopilot.core.mig import find_gpu_model, is_legal
from autopilot.core.records import Inventory
from autopilot.core.snapshot import SloClass, State
from simulator.facts import (
    HOOKS,
    Decided,
    Evicting,
    Fact,
    GpuChanged,
    NodeChanged,
    Recut,
    Started,
    Stopped,
    Submitted,
    Why,
)
from simulator.hardware import FREE, Hardware, Held, Refusal
from simulator.physics import IDEAL, TICKS_PER_S, Physics, on_grid, up_to_grid
from simulator.work import Jobs

UNSUBMITTED = -1
"""State of a job whose submit time has not come."""

READY, END, VACATE = 0, 1, 2
"""Kinds of the events that the cluster asks its engine for: start-up done, work done, checkpoint written."""

_PENDING, _STARTING, _RUNNING = int(State.PENDING), int(State.STARTING), int(State.RUNNING)
_CHECKPOINTING, _SUCCEEDED, _FAILED = int(State.CHECKPOINTING), int(State.SUCCEEDED), int(State.FAILED)


def _no_event(_at_s: float, _kind: int, _job: int, _incarnation: int) -> None:
    """The event sink of a cluster without an engine."""


class Cluster:
    """Hardware, jobs and their lives. Columns are lists by job row; read them, change them by the methods.

    `schedule` is given (time, READY | END | VACATE, job, incarnation) and must call `ready`, `finish` or
    `vacate` then; a call for a past incarnation does nothing.
    """

    def __init__(
        self,
        inventory: Inventory,
        jobs: Jobs,
        physics: Physics = IDEAL,
        gpu_memory_mib: dict[str, int | None] | None = None,
    ) -> None:
        """All jobs are unsubmitted at first. `gpu_memory_mib` by GPU model, None where unknown."""
        self.inventory, self.jobs, self.physics = inventory, jobs, physics
        self.hardware = Hardware(inventory, gpu_memory_mib)
        self.schedule: Callable[[float, int, int, int], None] = _no_event
        self.state: list[int] = []
        self.incarnation: list[int] = []
        self.first_start_s: list[float] = []  # NaN: never started
        self.start_s: list[float] = []  # of the present incarnation; NaN while it holds nothing
        self.ready_s: list[float] = []
        self.end_s: list[float] = []  # when it ended for good; NaN before
        self.served_s: list[float] = []  # progress kept from earlier incarnations
        self.evictions: list[int] = []
        self.nodes_used: list[int] = []  # nodes at its last start
        self.backfilled: list[bool] = []
        self.held: list[Held | None] = []
        self.holding: dict[int, None] = {}
        self.pending: dict[int, None] = {}
        self._leaving: dict[int, tuple[Why, float]] = {}  # being checkpointed: why, since when
        self._writers = [0.0] * max(1, int(physics.store_gib_per_s // physics.checkpoint_gib_per_s)
                                    if physics.writes_checkpoints else 1)  # fmt: skip
        self._images: set[tuple[int, int, str]] = set()
        self._simple = physics.free_start
        self._hooks: dict[type, list[Callable[[Any], None]]] = {fact: [] for fact in HOOKS}
        self._grow()

    def _grow(self) -> None:
        """Columns for jobs that were added since."""
        more = len(self.jobs) - len(self.state)
        self.state += [UNSUBMITTED] * more
        for counts in (self.incarnation, self.evictions, self.nodes_used):
            counts.extend([0] * more)
        for times in (self.first_start_s, self.start_s, self.ready_s, self.end_s):
            times.extend([nan] * more)
        self.served_s += [0.0] * more
        self.backfilled += [False] * more
        self.held += [None] * more

    # --- observers ------------------------------------------------------------------------

    def observe(self, observer: object) -> None:
        """Give every later fact to the methods of `observer` that are named in facts.HOOKS."""
        for fact, name in HOOKS.items():
            hook = getattr(observer, name, None)
            if hook is not None:
                self._hooks[fact].append(hook)

    def publish(self, fact: Fact) -> None:
        """State a fact to the observers of its kind."""
        for hook in self._hooks[type(fact)]:
            hook(fact)

    def decided(self, effect: str, kind: str, job: int, now_s: float) -> None:
        """An accepted decision allows the effect `effect` (admit | evict) on `job`."""
        self.publish(Decided(now_s, effect, kind, job))

    # --- the life of work -----------------------------------------------------------------

    def submit(self, job: int, now_s: float) -> None:
        """The job enters the queue. Jobs added to `jobs` after construction are taken in here."""
        if job >= len(self.state):
            self._grow()
        if self.state[job] == UNSUBMITTED:
            self.state[job] = _PENDING
            self.pending[job] = None
            for hook in self._hooks[Submitted]:
                hook(Submitted(now_s, job))

    def start(
        self,
        job: int,
        gpus: Sequence[int],
        now_s: float,
        *,
        instances: Sequence[int] = (),
        backfill: bool = False,
        effect: str = "",
        incarnation: int | None = None,
    ) -> Refusal | None:
        """Start a pending job on these GPU rows (with `instances`, the GPU of each instance), all or none."""
        if self.state[job] != _PENDING:
            return Refusal.NOT_PENDING
        if incarnation is not None and incarnation != self.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        jobs = self.jobs
        held = self.hardware.take(job, jobs.shapes[jobs.shape[job]], gpus, instances)
        if not isinstance(held, Held):
            return held
        self.held[job] = held
        del self.pending[job]
        self.holding[job] = None
        self.start_s[job] = now_s
        self.backfilled[job] = backfill
        self.nodes_used[job] = len(held.masks)
        if self.first_start_s[job] != self.first_start_s[job]:
            self.first_start_s[job] = now_s
        number = self.incarnation[job]
        startup_s = 0.0 if self._simple and not number else self._startup_s(job, held)
        self.ready_s[job] = ready_s = now_s + startup_s
        if startup_s:
            self.state[job] = _STARTING
            self.schedule(ready_s, READY, job, number)
        else:
            self.state[job] = _RUNNING
        left_s = jobs.duration_s[job] - self.served_s[job]
        if len(held.gpus) != jobs.gpus[job]:
            left_s = up_to_grid(left_s * self._full_milli(job, held) / held.milli)
        if left_s < inf:
            self.schedule(ready_s + left_s, END, job, number)
        hooks = self._hooks[Started]
        if hooks:
            fact = Started(now_s, job, number, held.gpus, held.instances, held.milli, backfill, effect)
            for hook in hooks:
                hook(fact)
        return None

    def ready(self, job: int, incarnation: int) -> bool:
        """Start-up is over; False when the job was stopped meanwhile."""
        if self.incarnation[job] != incarnation or self.state[job] != _STARTING:
            return False
        self.state[job] = _RUNNING
        return True

    def finish(self, job: int, now_s: float, incarnation: int | None = None) -> Refusal | None:
        """The job has done all its work."""
        if self.state[job] != _RUNNING:
            return Refusal.NOT_HOLDING
        if incarnation is not None and incarnation != self.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        gain_s = self.jobs.duration_s[job] - self.served_s[job]
        self._stop(job, now_s, Why.END, now_s, gain_s, 0.0, _SUCCEEDED)
        return None

    def evict(
        self,
        job: int,
        now_s: float,
        *,
        moving: bool = False,
        contract: bool = False,
        effect: str = "",
        incarnation: int | None = None,
    ) -> Refusal | None:
        """Tell a job to leave; it is pending again at once, or when its checkpoint is written.

        `moving`: it is stopped to be started elsewhere. `contract`: it was promised to give way.
        """
        if not _STARTING <= self.state[job] <= _CHECKPOINTING:
            return Refusal.NOT_HOLDING
        if self.state[job] == _CHECKPOINTING:
            return Refusal.LEAVING
        number = self.incarnation[job]
        if incarnation is not None and incarnation != number:
            return Refusal.OTHER_INCARNATION
        why = Why.MOVE if moving else Why.PREEMPT
        self.publish(Evicting(now_s, job, number, why, contract, effect))
        gain_s = self._gain_s(job, now_s)
        done_s = self._checkpoint_done_s(job, now_s) if gain_s > 0 else inf
        if done_s < inf:
            self._leaving[job] = (why, now_s)
            self.state[job] = _CHECKPOINTING
            self.schedule(done_s, VACATE, job, number)
            return None
        self._stop(job, now_s, why, now_s, gain_s, self._loss_s(job, gain_s), _PENDING)
        return None

    def vacate(self, job: int, now_s: float, incarnation: int) -> bool:
        """The checkpoint is written and the job leaves; False when it was stopped meanwhile."""
        if self.incarnation[job] != incarnation or self.state[job] != _CHECKPOINTING:
            return False
        why, halt_s = self._leaving[job]
        self._stop(job, now_s, why, halt_s, self._gain_s(job, halt_s), 0.0, _PENDING)
        return True

    def fail(self, job: int, now_s: float, *, final: bool = False) -> Refusal | None:
        """The job breaks without warning: it is pending again, or failed for good when `final`."""
        if not _STARTING <= self.state[job] <= _CHECKPOINTING:
            return Refusal.NOT_HOLDING
        halt_s = self._leaving[job][1] if job in self._leaving else now_s
        gain_s = self._gain_s(job, halt_s)
        why, state = (Why.FAIL, _FAILED) if final else (Why.FAULT, _PENDING)
        self._stop(job, now_s, why, halt_s, gain_s, self._loss_s(job, gain_s), state)
        return None

    def retire(self, job: int, now_s: float) -> None:
        """Its owner takes the job away (a replica scaled down), whether it runs or waits."""
        if job in self.holding:
            self._stop(job, now_s, Why.RETIRE, now_s, self._gain_s(job, now_s), 0.0, _SUCCEEDED)
        elif self.state[job] in {_PENDING, UNSUBMITTED}:
            self.pending.pop(job, None)
            self.state[job], self.end_s[job] = _SUCCEEDED, now_s

    def settle(self, now_s: float) -> None:
        """The run is over: state what running work has done so far. Nothing is stopped by it."""
        for job in self.holding:
            held = self.held[job]
            halt_s = self._leaving[job][1] if job in self._leaving else now_s
            if held is not None:
                self.publish(self._stopped(job, now_s, Why.CUT, halt_s, self._gain_s(job, halt_s), 0.0, held))

    def _stop(
        self, job: int, now_s: float, why: Why, halt_s: float, gain_s: float, lost_s: float, state: int
    ) -> None:
        held = self.held[job]
        if held is None:
            return
        jobs = self.jobs
        self.hardware.give(job, jobs.shapes[jobs.shape[job]], held)
        fact = self._stopped(job, now_s, why, halt_s, gain_s, lost_s, held)
        self._leaving.pop(job, None)
        self.held[job] = None
        del self.holding[job]
        self.state[job] = state
        self.served_s[job] += gain_s - lost_s
        self.incarnation[job] += 1
        self.start_s[job] = self.ready_s[job] = nan
        self.backfilled[job] = False
        if state == _PENDING:
            self.evictions[job] += 1
            self.pending[job] = None
        else:
            self.end_s[job] = now_s
        for hook in self._hooks[Stopped]:
            hook(fact)

    def _stopped(
        self, job: int, now_s: float, why: Why, halt_s: float, gain_s: float, lost_s: float, held: Held
    ) -> Stopped:
        ready_s = min(self.ready_s[job], now_s)
        return Stopped(now_s, job, self.incarnation[job], why, self.start_s[job], ready_s, max(halt_s, ready_s),
                       gain_s, lost_s, held.milli, self._full_milli(job, held))  # fmt: skip

    # --- time and loss --------------------------------------------------------------------

    def _full_milli(self, job: int, held: Held) -> int:
        """Width at which a second of progress is counted."""
        if len(held.gpus) == self.jobs.gpus[job]:
            return held.milli
        return self.jobs.shape_of(job).full_milli

    def _gain_s(self, job: int, halt_s: float) -> float:
        """Progress of the present incarnation up to `halt_s`, rounded down to the grid."""
        elapsed_s = halt_s - self.ready_s[job]
        if elapsed_s <= 0:
            return 0.0
        held = self.held[job]
        if held is not None and len(held.gpus) != self.jobs.gpus[job]:
            elapsed_s = (
                floor(elapsed_s * TICKS_PER_S * held.milli / self._full_milli(job, held)) / TICKS_PER_S
            )
        return min(elapsed_s, self.jobs.duration_s[job] - self.served_s[job])

    def progress_s(self, job: int, now_s: float) -> float:
        """All progress of a job that would be kept if it lost none: seconds at full width."""
        return self.served_s[job] + (self._gain_s(job, now_s) if job in self.holding else 0.0)

    def checkpoint_interval_s(self, job: int) -> float:
        """Progress between two checkpoints; infinity when the job cannot resume, 0 when it never loses any."""
        stated_s = self.jobs.checkpoint_interval_s[job]
        if not self.physics.checkpoint_interval_s:
            return 0.0
        if not isnan(stated_s):
            return stated_s
        return self.physics.checkpoint_interval_s if self.jobs.slo_class[job] == SloClass.BATCH else inf

    def last_checkpoint_s(self, job: int, now_s: float) -> float:
        """When the newest periodic checkpoint of the present incarnation was made; NaN when there is none."""
        interval_s = self.checkpoint_interval_s(job)
        gain_s = self._gain_s(job, now_s) if job in self.holding else 0.0
        if not 0 < interval_s <= gain_s:
            return nan
        return self.ready_s[job] + floor(gain_s / interval_s) * interval_s

    def _loss_s(self, job: int, gain_s: float) -> float:
        """Progress lost by a stop without a fresh checkpoint."""
        progress_s = self.served_s[job] + gain_s
        interval_s = self.checkpoint_interval_s(job)
        if interval_s == inf:
            return progress_s
        since_s = on_grid(gain_s % interval_s) if interval_s else 0.0
        return min(max(since_s, self.physics.flat_loss_s), progress_s)

    def _checkpoint_done_s(self, job: int, now_s: float) -> float:
        """When a checkpoint asked for now would be written; infinity when that is not within the grace."""
        physics = self.physics
        if not physics.writes_checkpoints or self.checkpoint_interval_s(job) == inf:
            return inf
        size_gib = physics.checkpoint_size_gib(self.jobs.checkpoint_gib[job], self.jobs.gpus[job])
        done_s = up_to_grid(max(now_s, self._writers[0]) + physics.write_s(size_gib))
        if done_s > now_s + physics.grace_s:
            return inf
        heapreplace(self._writers, done_s)  # one writer of the store's bandwidth is busy until then
        return max(done_s, now_s + 1 / TICKS_PER_S)

    def _startup_s(self, job: int, held: Held) -> float:
        """From placement to the first useful step, the slowest node deciding."""
        physics, jobs = self.physics, self.jobs
        images = [(node, jobs.tenant[job], jobs.kind[job]) for node in held.masks]
        cached = all(image in self._images for image in images)
        self._images.update(images)
        size_gib = physics.checkpoint_size_gib(jobs.checkpoint_gib[job], jobs.gpus[job])
        if self.incarnation[job]:
            return up_to_grid(physics.restart_s(jobs.restart_s[job], size_gib, cached))
        service = jobs.slo_class[job] == SloClass.LATENCY_CRITICAL
        return up_to_grid(physics.first_start_s(service, jobs.restart_s[job], cached))

    # --- the hardware ---------------------------------------------------------------------

    def fail_node(self, node: int, now_s: float) -> list[int]:
        """The node goes down; returns the gangs that it took with it, each pending again whole."""
        self._set_node(node, now_s, ready=False, cordoned=self.hardware.cordoned[node])
        return self._interrupt(self.hardware.node_holders(node), now_s)

    def restore_node(self, node: int, now_s: float) -> None:
        """The node is up again and takes work (a cordon of it ends too)."""
        self._set_node(node, now_s, ready=True, cordoned=False)

    def cordon(self, node: int, now_s: float, *, cordoned: bool = True) -> None:
        """The node takes no new work (or takes it again); what it runs goes on."""
        self._set_node(node, now_s, ready=self.hardware.ready[node], cordoned=cordoned)

    def _set_node(self, node: int, now_s: float, *, ready: bool, cordoned: bool) -> None:
        self.hardware.set_node(node, ready=ready, cordoned=cordoned)
        self.publish(NodeChanged(now_s, node, ready, cordoned))

    def fail_gpu(self, gpu: int, now_s: float) -> list[int]:
        """The GPU breaks; returns the gangs that it took with it."""
        stopped = self._interrupt(self.hardware.holders(gpu), now_s)
        self.hardware.set_gpu(gpu, healthy=False)
        self.publish(GpuChanged(now_s, gpu, healthy=False))
        return stopped

    def restore_gpu(self, gpu: int, now_s: float) -> None:
        """The GPU was mended."""
        self.hardware.set_gpu(gpu, healthy=True)
        self.publish(GpuChanged(now_s, gpu, healthy=True))

    def _interrupt(self, jobs: Sequence[int], now_s: float) -> list[int]:
        return [job for job in jobs if self.fail(job, now_s) is None]

    def recut(self, gpu: int, geometry: Sequence[tuple[str, int]], now_s: float) -> Refusal | None:
        """Give a GPU these (profile, first memory slice) instances; () makes it whole again.

        Instances in use must be among them; a whole GPU must be free.
        """
        hardware = self.hardware
        model = find_gpu_model(self.inventory.names.gpu_models[hardware.model_of[hardware.node_of[gpu]]])
        if model is None or not is_legal(model, geometry):
            return Refusal.ILLEGAL_GEOMETRY
        if not hardware.healthy[gpu]:
            return Refusal.GPU_BROKEN
        if not hardware.mig[gpu] and hardware.holder[gpu] != FREE:
            return Refusal.NOT_IDLE
        for row in hardware.cut.get(gpu, ()):
            instance = hardware.instances[row]
            if hardware.instance_holder[row] != FREE and (instance.profile, instance.start) not in geometry:
                return Refusal.NOT_IDLE
        hardware.recut(gpu, geometry)
        rows = hardware.cut.get(gpu, ())
        cuts = tuple((row, hardware.instances[row].profile, hardware.instances[row].start) for row in rows)
        self.publish(Recut(now_s, gpu, cuts))
        return None
