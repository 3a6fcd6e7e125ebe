"""Work leaves a condemned GPU in time, and nothing starts there before it is repaired.

Work on a GPU with a changing MIG geometry is left alone until the change ends. Classes of errors are NVIDIA's
(autopilot/core/hardware/xid_facts.py). Opted-out work may stay.
"""

from __future__ import annotations

from autopilot.core.hardware.xid_facts import CONDEMNED, Remedy, remedy_of
from simulator.checkers.base import Checker, World
from simulator.world.facts import Cordoned, Evicting, GpuChanged, Recutting, Started, Stopped, Why


class Errors(Checker):
    """Tracks condemned GPUs in use, and their holders."""

    name = "gpu-errors"

    def __init__(self, world: World) -> None:
        """No errors yet."""
        super().__init__(world)
        self._condemned: dict[int, int] = {}  # GPU -> XID
        self._holders: dict[int, Started] = {}
        self._changing: set[int] = set()  # GPUs
        self._errors: dict[int, int] = {}  # GPU -> XID, whether work can notice it or not
        self._cordoned: set[int] = set()  # nodes
        self._due_s: dict[int, tuple[float, int]] = {}  # job -> (deadline of its eviction, GPU)

    def on_gpu(self, fact: GpuChanged) -> None:
        """The holder of a newly condemned GPU must be evicted soon."""
        self._late(fact.at_s)
        self._errors[fact.gpu] = fact.xid
        if fact.xid and remedy_of(fact.xid) >= CONDEMNED and fact.healthy:
            self._condemned[fact.gpu] = fact.xid
            self._ask_to_leave(fact.at_s, fact.gpu)
        elif not fact.xid:
            self._condemned.pop(fact.gpu, None)
            self._due_s = {job: due for job, due in self._due_s.items() if due[1] != fact.gpu}

    def _ask_to_leave(self, at_s: float, gpu: int) -> None:
        within_s = self.world.rules.recover_within_s
        if within_s is None or gpu in self._changing:
            return
        for job, held in self._holders.items():
            if gpu in held.gpus and job not in self.world.rules.excluded:
                self._due_s.setdefault(job, (at_s + within_s, gpu))

    def on_recutting(self, fact: Recutting) -> None:
        """The time to leave a condemned GPU begins at the end of the change."""
        self._late(fact.at_s)
        if fact.begins:
            self._changing.add(fact.gpu)
            self._due_s = {job: due for job, due in self._due_s.items() if due[1] != fact.gpu}
            return
        self._changing.discard(fact.gpu)
        if fact.gpu in self._condemned:
            self._ask_to_leave(fact.at_s, fact.gpu)

    def on_cordoned(self, fact: Cordoned) -> None:
        """A node is cordoned for an error in need of its restart, and opened only if the autopilot closed it."""
        self.checked += 1
        if not fact.on:
            if fact.node not in self._cordoned:
                self.violate(fact.at_s, self.node(fact.node), "was opened, and the autopilot had not cordoned it")
            self._cordoned.discard(fact.node)
            return
        self._cordoned.add(fact.node)
        node_of = self.world.inventory.gpus.node
        there = [xid for gpu, xid in self._errors.items() if node_of[gpu] == fact.node]
        if all(remedy_of(xid) != Remedy.RESTART_NODE for xid in there):
            self.violate(fact.at_s, self.node(fact.node), "was cordoned without an error that asks for its restart")

    def on_started(self, fact: Started) -> None:
        """None of its GPUs may be condemned."""
        self._late(fact.at_s)
        self.checked += 1
        self._holders[fact.job] = fact
        for gpu in fact.gpus if self._condemned else ():
            if gpu in self._condemned:
                self.violate(
                    fact.at_s,
                    self.job(fact.job),
                    f"started on {self.gpu(gpu)}, which reported XID {self._condemned[gpu]}",
                )

    def on_evicting(self, fact: Evicting) -> None:
        """It was evicted."""
        self._late(fact.at_s)
        self._due_s.pop(fact.job, None)

    def on_stopped(self, fact: Stopped) -> None:
        """It has left."""
        self._late(fact.at_s)
        if fact.why != Why.CUT:
            self._holders.pop(fact.job, None)
            self._due_s.pop(fact.job, None)

    def at_end(self, end_s: float) -> None:
        """Report the work that should have left by then."""
        self._late(end_s)

    def _late(self, now_s: float) -> None:
        for job, (due_s, gpu) in list(self._due_s.items()):
            if now_s > due_s:
                del self._due_s[job]
                self.violate(
                    due_s,
                    self.job(job),
                    f"still holds {self.gpu(gpu)}, which reported XID {self._condemned.get(gpu, 0)}",
                )
