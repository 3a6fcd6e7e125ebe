"""The simulated cluster: the ground truth of placements and progress, and the cost of every change.

A scheduler calls it (`start`, `evict`, ...); the cluster checks every precondition and returns None, or a `Refusal`
if it does nothing. It publishes the events to observers as facts (simulator/world/facts.py). Times are virtual
seconds on the grid of simulator/world/physics.py. A job's progress counts from the end of its start-up, in seconds at
its full width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

from autopilot.core.hardware.mig import find_gpu_model, is_legal
from autopilot.core.model.objects import Sharing
from autopilot.core.model.records import Inventory, Save
from autopilot.core.model.snapshot import State
from simulator.world.facts import (
    Decided,
    Evicting,
    Notified,
    Recut,
    Resumed,
    Started,
    Stopped,
    Submitted,
    Why,
    Withdrawn,
)
from simulator.world.gains import END, GIVE_UP, READY, VACATE, Gaining
from simulator.world.growing import Growing
from simulator.world.hardware import FREE, Hardware, Held, Refusal
from simulator.world.jobstate import UNSUBMITTED
from simulator.world.pauses import Pauses
from simulator.world.physics import IDEAL, Physics, up_to_grid
from simulator.world.progress import NO_WRITE, Checkpoints, Leaving, Startups
from simulator.world.recutting import Recuts
from simulator.world.sharing import Sharings
from simulator.world.work import Jobs

_PENDING, _STARTING, _RUNNING = int(State.PENDING), int(State.STARTING), int(State.RUNNING)
_CHECKPOINTING, _SUCCEEDED, _FAILED = int(State.CHECKPOINTING), int(State.SUCCEEDED), int(State.FAILED)


def _no_linger(_job: int, _incarnation: int, _now_s: float) -> float:
    """Evicted work leaves within its grace period."""
    return 0.0


class Cluster(Gaining):
    """Hardware, jobs and their states. Columns are lists by job row; read them directly, change them by the methods.

    `schedule` is called with (time, READY | END | VACATE | GIVE_UP, job, incarnation) and must call `ready`, `finish`,
    `vacate` or `give_up` then; a call for a past incarnation does nothing. `linger_s(job, incarnation, now)` returns
    the stay on its GPUs of work evicted now, in seconds; 0: it leaves in time.
    """

    def __init__(
        self,
        inventory: Inventory,
        jobs: Jobs,
        physics: Physics = IDEAL,
        gpu_memory_mib: dict[str, int | None] | None = None,
    ) -> None:
        """All jobs are unsubmitted at first. `gpu_memory_mib` by GPU model, None if unknown."""
        super().__init__(jobs, Hardware(inventory, gpu_memory_mib))
        self.inventory, self.physics, self._simple = inventory, physics, physics.free_start
        self.linger_s: Callable[[int, int, float], float] = _no_linger
        self.counted: set[int] = set()  # work that runs on after its eviction was counted
        self.checkpoints = Checkpoints(jobs, physics)
        self._startups = Startups(jobs, physics, self.checkpoints)
        self.growing, self.recuts = Growing(self), Recuts(self, physics.mig_reconfigure_s)
        self.sharings, self.pauses = Sharings(self), Pauses(self)

    def struck(self, gpu: int, now_s: float) -> list[int]:
        """The work hit by an error of its GPU that does not break it."""
        return self.sharings.struck(gpu, now_s) if self.hardware.split else self.hardware.holders(gpu)

    def paced_s(self, job: int, halt_s: float) -> float | None:
        """Progress of the present incarnation of a job on shared GPUs up to a time; None for any other job."""
        return self.sharings.gained_s(job, halt_s)

    def halted(self, job: int, now_s: float) -> None:
        """A job on shared GPUs works no more, or works again: the pace of the others changes."""
        self.sharings.halted(job, now_s)

    def set_sharing(
        self, node: int, sharing: Sharing, replicas: int, now_s: float, *, effect: str = ""
    ) -> Refusal | None:
        """Begin to change how software shares the GPUs of a node without work; nothing starts there until then."""
        return self.sharings.begin(node, sharing, replicas, now_s, effect)

    def decided(self, effect: str, kind: str, job: int, now_s: float) -> None:
        """An accepted decision allows the effect `effect` (admit | evict | resize) on `job`."""
        self.publish(Decided(now_s, effect, kind, job))

    # --- the life of work -----------------------------------------------------------------

    def submit(self, job: int, now_s: float) -> None:
        """The job enters the queue. Jobs added to `jobs` after construction are registered here."""
        if job >= len(self.state):
            self.grow()
        if self.state[job] == UNSUBMITTED:
            self.state[job] = _PENDING
            self.pending[job] = None
            for hook in self.hooks[Submitted]:
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
        if self.state[job] != _PENDING or job in self.parked:
            return Refusal.NOT_PENDING
        if incarnation is not None and incarnation != self.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        if self.limits is not None and not self.limits.allows(job, gpus):
            return Refusal.QUEUE_LIMIT
        jobs = self.jobs
        held = self.hardware.take(job, jobs.shapes[jobs.shape[job]], gpus, instances)
        if not isinstance(held, Held):
            return held
        self.held[job] = held
        del self.pending[job]
        self.holding[job] = None
        self.start_s[job] = self.since_s[job] = now_s
        self.backfilled[job] = backfill
        self.nodes_used[job], self.ran_on[job] = len(held.masks), tuple(held.masks)
        if self.first_start_s[job] != self.first_start_s[job]:
            self.first_start_s[job] = now_s
        number = self.incarnation[job]
        startup_s = 0.0
        if number or not self._simple:
            startup_s = self._startups.startup_s(job, held.masks, again=number > 0)
        self.ready_s[job] = ready_s = now_s + startup_s
        self._expect(job, number, held, ready_s, startup_s > 0)
        hooks = self.hooks[Started]
        if hooks:
            fact = Started(now_s, job, number, held.gpus, held.instances, held.milli, backfill, effect)
            for hook in hooks:
                hook(fact)
        if self.silent:
            self.meet_silence(job, held.gpus, now_s)
        if self.hardware.split or self.sharings.loads.slow:
            self.sharings.joined(job, held, now_s)
        return None

    def _expect(self, job: int, number: int, held: Held, ready_s: float, starting: bool) -> None:
        """Schedule the events of an incarnation: the end of its start-up, and of its work."""
        if starting:
            self.state[job] = _STARTING
            self.schedule(ready_s, READY, job, number)
        else:
            self.state[job] = _RUNNING
        left_s = self.left_s(job)
        if left_s < inf:
            self.schedule(ready_s + left_s, END, job, number)

    def resize(
        self, job: int, gpus: Sequence[int], now_s: float, *, effect: str = "", incarnation: int | None = None
    ) -> Refusal | None:
        """Let a running elastic gang continue with exactly these GPU rows: more or fewer than it holds.

        Its progress is kept, and saved. It pauses for the time of a resize (and for the rest of its start-up), and
        begins a new incarnation: neither a preemption nor a wait.
        """
        was = self.held[job]
        if was is None:
            return Refusal.NOT_HOLDING
        if incarnation is not None and incarnation != self.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        if job in self.leaving:
            return Refusal.LEAVING
        if job in self.stale:
            return Refusal.STALE
        if job in self.paused:
            self.pauses.end(job, now_s)
        held = self.hardware.resize(job, self.jobs.shape_of(job), was, gpus)
        if not isinstance(held, Held):
            return held
        gain_s = self._gain_s(job, now_s)
        fact = self._stopped(job, now_s, Why.RESIZE, gain_s, 0.0, was)
        self.pauses.left(job)
        self.held[job] = held
        self.served_s[job] += gain_s
        self.lost_gpu_s[job] = 0.0
        self.incarnation[job] = number = self.incarnation[job] + 1
        self.start_s[job] = now_s
        self.ready_s[job] = ready_s = max(self.ready_s[job], now_s) + up_to_grid(self.physics.resize_s)
        self.nodes_used[job], self.ran_on[job] = len(held.masks), tuple(held.masks)
        self._startups.pull(job, held.masks)
        self._expect(job, number, held, ready_s, ready_s > now_s)
        self.publish(fact)
        self.publish(Started(now_s, job, number, held.gpus, held.instances, held.milli, self.backfilled[job], effect))
        return None

    def ready(self, job: int, incarnation: int) -> bool:
        """Start-up is over; False if the job was stopped meanwhile."""
        if self.incarnation[job] != incarnation or self.state[job] != _STARTING:
            return False
        self.state[job] = _RUNNING
        if self.hardware.split or self.sharings.loads.slow:
            self.sharings.loaded(job, self.ready_s[job])
        return True

    def finish(self, job: int, now_s: float, incarnation: int | None = None) -> Refusal | None:
        """The job has done all its work."""
        if self.state[job] != _RUNNING:
            return Refusal.NOT_HOLDING
        if incarnation is not None and incarnation != self.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        if job in self.stale:
            return Refusal.STALE
        gain_s = self.jobs.duration_s[job] - self.served_s[job]
        if self.pauses.goes_on(job, now_s) or self.sharings.goes_on(job, gain_s, now_s):
            return Refusal.NOT_DONE
        self._stop(job, now_s, Why.END, gain_s, 0.0, _SUCCEEDED)
        return None

    def evict(
        self,
        job: int,
        now_s: float,
        *,
        moving: bool = False,
        recover: bool = False,
        contract: bool = False,
        suspend: bool = False,
        ahead: bool = False,
        away: bool = False,
        drain: bool = False,
        apart: bool = False,
        park: bool = False,
        save: Save = Save.TRY,
        effect: str = "",
        incarnation: int | None = None,
    ) -> Refusal | None:
        """Evict a job; it is pending again at once, or after it has saved its progress and left.

        `moving`: it is stopped to be started elsewhere, with `ahead` for merely expected work, with `drain` for
        another MIG geometry, with `apart` because of a neighbour. `recover`: its hardware failed or is about to; stuck
        work is then removed by force. `contract`: by contract. `suspend`: it exceeded its limit, and its owner has to
        start it anew. `park`: it does nothing, and waits for its owner (`resume`). `save`: the treatment of work with
        no save in the grace period.
        """
        if self.held[job] is None:
            return Refusal.NOT_HOLDING
        forced = recover and self.stuck(job, now_s)
        if job in self.leaving and not forced:
            return Refusal.LEAVING
        number = self.incarnation[job]
        if incarnation is not None and incarnation != number:
            return Refusal.OTHER_INCARNATION
        if job in self.paused:
            self.pauses.end(job, now_s)
        asked = {Why.RECOVER: recover, Why.MOVE: moving, Why.SUSPEND: suspend, Why.PARK: park}
        why = next((why for why, wanted in asked.items() if wanted), Why.PREEMPT)
        write = NO_WRITE
        if not forced and job not in self.stale and self._gain_s(job, now_s) > 0:
            skips = save == Save.SKIP
            write = self.checkpoints.no_turn(job, now_s) if skips else self.checkpoints.ask(job, now_s)
            if save == Save.MUST and not self.checkpoints.keeps(job, write):
                return Refusal.UNSAVED
        by_signal = self.sharings.is_client(job) and not self.checkpoints.keeps(job, write)
        self.publish(Evicting(now_s, job, number, why, contract, effect, ahead, drain, by_signal, away, apart))
        if not forced:
            linger_s = self.linger_s(job, number, now_s)
            self.leaving[job] = Leaving(why, now_s, write)
            if linger_s or write.done_s < inf:
                gone_s = max(up_to_grid(now_s + linger_s), write.done_s if write.done_s < inf else now_s)
                self.state[job] = _CHECKPOINTING
                self.schedule(gone_s, VACATE, job, number)
                self.sharings.halted(job, now_s)
                return None
        self._leave(job, now_s)
        return None

    def resume(self, job: int, now_s: float) -> bool:
        """Its owner resumes parked work; False if it is not parked."""
        if self.parked.pop(job, None) is None:
            return False
        self.pending[job] = None
        self.publish(Resumed(now_s, job))
        return True

    def notify(self, job: int, now_s: float, grace_s: float, effect: str, incarnation: int) -> Refusal | None:
        """Notify the owner of running work."""
        if self.held[job] is None:
            return Refusal.NOT_HOLDING
        if incarnation != self.incarnation[job]:
            return Refusal.OTHER_INCARNATION
        self.publish(Notified(now_s, job, grace_s, effect))
        return None

    def stuck(self, job: int, now_s: float) -> bool:
        """True if a job was evicted, has exceeded its grace period, and still holds GPUs."""
        told = job in self.leaving and job not in self.counted  # nobody stops the pods of what is counted only
        return told and now_s > self.leaving[job].since_s + self.physics.grace_s

    def vacate(self, job: int, now_s: float, incarnation: int) -> bool:
        """Evicted work has left; False if it was stopped meanwhile."""
        if self.incarnation[job] != incarnation or self.state[job] != _CHECKPOINTING:
            return False
        self._leave(job, now_s)
        return True

    def _leave(self, job: int, now_s: float) -> None:
        gain_s, why = self._gain_s(job, now_s), self.leaving[job].why
        state = _FAILED if why == Why.SUSPEND else _PENDING
        self._stop(job, now_s, why, gain_s, self._lost_s(job, now_s, gain_s), state)

    def fail(self, job: int, now_s: float, *, final: bool = False) -> Refusal | None:
        """The job fails without warning: it is pending again, or failed permanently if `final`."""
        if self.held[job] is None:
            return Refusal.NOT_HOLDING
        gain_s = self._gain_s(job, now_s)
        why, state = (Why.FAIL, _FAILED) if final else (Why.FAULT, _PENDING)
        self._stop(job, now_s, why, gain_s, self._lost_s(job, now_s, gain_s), state)
        return None

    def lose_member(self, job: int, now_s: float, hang_s: float) -> Refusal | None:
        """One member of a gang dies. The others hold their GPUs without progress, until the gang is stopped.

        After `hang_s` they notice on their own, and the gang fails.
        """
        if self.held[job] is None:
            return Refusal.NOT_HOLDING
        if job in self.leaving:
            return Refusal.LEAVING
        if job in self.stale:
            return Refusal.STALE
        self.stale[job] = now_s
        self.sharings.halted(job, now_s)
        self.schedule(up_to_grid(now_s + hang_s), GIVE_UP, job, self.incarnation[job])
        return None

    def give_up(self, job: int, now_s: float, incarnation: int) -> bool:
        """A gang without one of its members fails; False if it was stopped meanwhile."""
        return self.incarnation[job] == incarnation and job in self.stale and self.fail(job, now_s) is None

    def retire(self, job: int, now_s: float) -> None:
        """Its owner withdraws the job (a replica scaled down), running or waiting."""
        if job in self.holding:
            self._stop(job, now_s, Why.RETIRE, self._gain_s(job, now_s), 0.0, _SUCCEEDED)
        elif self.state[job] in {_PENDING, UNSUBMITTED}:
            self.pending.pop(job, None)
            self.parked.pop(job, None)
            self.state[job], self.end_s[job] = _SUCCEEDED, now_s
            self.publish(Withdrawn(now_s, job))

    def settle(self, now_s: float) -> None:
        """The run is over: publish the progress of running work, without stopping it."""
        for job in self.holding:
            held = self.held[job]
            if held is not None:
                self.publish(self._stopped(job, now_s, Why.CUT, self._gain_s(job, now_s), 0.0, held))

    def _stop(self, job: int, now_s: float, why: Why, gain_s: float, lost_s: float, state: int) -> None:
        held = self.held[job]
        if held is None:
            return
        jobs, clean = self.jobs, self.sharings.ends_cleanly(job, why, now_s)
        self.hardware.give(job, jobs.shapes[jobs.shape[job]], held)
        fact = self._stopped(job, now_s, why, gain_s, lost_s, held)
        if self.leaving or self.stale:
            self.leaving.pop(job, None)
            self.stale.pop(job, None)
            self.hung.discard(job)
        self.pauses.left(job)
        self.held[job] = None
        self.counted.discard(job)
        del self.holding[job]
        self.state[job] = state
        self.outlived_s[job] = max(self.outlived_s[job], self.served_s[job] + gain_s)
        self.served_s[job] += gain_s - lost_s
        self.lost_gpu_s[job] = lost_s * fact.full_milli / 1000
        self.incarnation[job] += 1
        self.start_s[job] = self.since_s[job] = self.ready_s[job] = nan
        self.backfilled[job] = False
        if state == _PENDING:
            self.evictions[job] += 1
            if why == Why.PARK:
                self.parked[job] = now_s
            else:
                self.pending[job] = None
        else:
            self.end_s[job] = now_s
        for hook in self.hooks[Stopped]:
            hook(fact)
        if self.hardware.split or self.sharings.loads.slow:
            self.sharings.left(fact, held, clean)

    def _stopped(self, job: int, now_s: float, why: Why, gain_s: float, lost_s: float, held: Held) -> Stopped:
        ready_s = min(self.ready_s[job], now_s)
        halt_s = self._halt_s(job, now_s) if self.leaving or self.stale or self.paused else now_s
        starved = lost_s > 0 and job in self.leaving and self.leaving[job].starved(now_s)
        return Stopped(
            now_s,
            job,
            self.incarnation[job],
            why,
            self.start_s[job],
            ready_s,
            max(halt_s, ready_s),
            gain_s,
            lost_s,
            held.milli,
            self._full_milli(job, held),
            starved,
        )

    # --- the hardware ---------------------------------------------------------------------

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
