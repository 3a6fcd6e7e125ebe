"""Failures of hardware and their effect on work: nodes, GPUs, and GPUs merely reporting an error."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import inf

from simulator.world.facts import GpuChanged, NodeChanged
from simulator.world.hardware import Hardware, Refusal
from simulator.world.jobstate import JobState
from simulator.world.work import Jobs


def _no_event(_at_s: float, _kind: int, _job: int, _incarnation: int) -> None:
    """The event sink of a cluster without an engine."""


class Breakable(JobState):
    """Jobs on fallible hardware."""

    def __init__(self, jobs: Jobs, hardware: Hardware) -> None:
        """No failures yet."""
        super().__init__(jobs)
        self.hardware = hardware
        self.schedule: Callable[[float, int, int, int], None] = _no_event
        self.xid: dict[int, int] = {}  # last error of each GPU that reported one since its repair
        self.hung: set[int] = set()  # work on a GPU that hangs: all its members appear alive
        self.silent: dict[int, float] = {}  # GPUs on which work hangs, and how long until it notices

    @abstractmethod
    def fail(self, job: int, now_s: float, *, final: bool = False) -> Refusal | None:
        """The job fails without warning."""

    @abstractmethod
    def lose_member(self, job: int, now_s: float, hang_s: float) -> Refusal | None:
        """One member of a gang dies, and the others keep their GPUs."""

    @abstractmethod
    def struck(self, gpu: int, now_s: float) -> list[int]:
        """The work hit by an error of its GPU that does not break it."""

    def xids(self) -> list[int]:
        """The last error of each GPU since its repair; 0: none."""
        return [self.xid.get(gpu, 0) for gpu in range(len(self.hardware.node_of))]

    def fail_node(self, node: int, now_s: float) -> list[int]:
        """The node goes down; returns the gangs failing with it, each pending again as a whole."""
        self._set_node(node, now_s, ready=False, cordoned=self.hardware.cordoned[node])
        return self._interrupt(self.hardware.node_holders(node), now_s)

    def restore_node(self, node: int, now_s: float) -> None:
        """The node is up again and schedulable (its cordon and an announced reclaim end too)."""
        self.hardware.reclaim_at_s[node] = inf
        self._set_node(node, now_s, ready=True, cordoned=False)

    def cordon(self, node: int, now_s: float, *, cordoned: bool = True) -> None:
        """The node takes no new work (or takes it again); running work continues."""
        self._set_node(node, now_s, ready=self.hardware.ready[node], cordoned=cordoned)

    def announce_reclaim(self, node: int, now_s: float, reclaim_at_s: float) -> None:
        """The cloud will reclaim the node at `reclaim_at_s`: it takes no new work, running work goes on until then."""
        self.hardware.reclaim_at_s[node] = reclaim_at_s
        self.cordon(node, now_s)

    def _set_node(self, node: int, now_s: float, *, ready: bool, cordoned: bool) -> None:
        self.hardware.set_node(node, ready=ready, cordoned=cordoned)
        self.publish(NodeChanged(now_s, node, ready, cordoned, self.hardware.reclaim_at_s[node]))

    def fail_gpu(self, gpu: int, now_s: float, *, xid: int = 0, broken: bool = True) -> list[int]:
        """The GPU fails, or reports an error noticed by its work alone; returns the gangs failing with it.

        `xid` is NVIDIA's number of the error, 0 if none is given.
        """
        stopped = self._interrupt(self.hardware.holders(gpu) if broken else self.struck(gpu, now_s), now_s)
        if xid:
            self.xid[gpu] = xid
        if broken:
            self.hardware.set_gpu(gpu, healthy=False)
        self.publish(GpuChanged(now_s, gpu, self.hardware.healthy[gpu], xid))
        return stopped

    def silence_gpu(self, gpu: int, now_s: float, xid: int, hang_s: float) -> None:
        """The GPU reports an error, its work hangs after it, and it stays in use.

        Its work holds its GPUs without progress until it is stopped; after `hang_s` it notices and fails.
        """
        self.xid[gpu], self.silent[gpu] = xid, hang_s
        for job in self.hardware.holders(gpu):
            self._hang(job, now_s, hang_s)
        self.publish(GpuChanged(now_s, gpu, self.hardware.healthy[gpu], xid))

    def meet_silence(self, job: int, gpus: Sequence[int], now_s: float) -> None:
        """Newly started work hangs at once if one of its GPUs does."""
        for gpu in set(gpus).intersection(self.silent):
            self._hang(job, now_s, self.silent[gpu])

    def _hang(self, job: int, now_s: float, hang_s: float) -> None:
        if self.lose_member(job, now_s, hang_s) is None:
            self.hung.add(job)

    def restore_gpu(self, gpu: int, now_s: float) -> None:
        """The GPU was repaired by a reset: work still hanging on it fails."""
        if self.silent.pop(gpu, None) is not None:
            self._interrupt([job for job in self.hardware.holders(gpu) if job in self.hung], now_s)
        self.xid.pop(gpu, None)
        self.hardware.set_gpu(gpu, healthy=True)
        self.publish(GpuChanged(now_s, gpu, healthy=True))

    def _interrupt(self, jobs: Sequence[int], now_s: float) -> list[int]:
        return [job for job in jobs if self.fail(job, now_s) is None]
