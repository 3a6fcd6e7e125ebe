"""The hostile state machine with changes of MIG geometry and with owners who are away (tests/hostile/cut_world.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition

from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.records import Instruction
from autopilot.core.model.snapshot import Gate, State
from tests.hostile.cut_world import CUT, SHAPES, CutCluster
from tests.hostile.machine import POLICY, Hostile, happens, kinds
from tests.hostile.ports import Ports, Sent
from tests.hostile.watch import Watch
from tests.kits.core_world import with_policy
from tests.kits.hardware_world import PROFILES

GRACE_S = 300.0
CUT_POLICY = with_policy(
    POLICY,
    idle={"scan_s": 60.0, "batch_grace_s": GRACE_S, "interactive_grace_s": GRACE_S, "gone_s": 0.0},
    recovery={"hung_after_s": 86_400.0},
    regeometry={"dwell_s": 120.0, "return_s": 600.0, "per_pool_hour": 2, "deadline_s": 300.0, "margin_ratio": 0.0},
)
"""Idle work is suspended soon, so that no hang is judged; geometries change often, and the bounds bind."""


@dataclass
class CutWatch(Watch):
    """Judges changes of geometry and suspensions as well."""

    @property
    def truth(self) -> CutCluster:
        """The cluster."""
        cluster = self.ports.cluster
        assert isinstance(cluster, CutCluster)
        return cluster

    def problems(self) -> list[str]:
        """What is wrong since the last call, the rate of changes included."""
        return [*super().problems(), *self._rate()]

    def _rate(self) -> list[str]:
        most = CUT_POLICY.regeometry.per_pool_hour
        for at_s in self.truth.begun_s:
            count = sum(at_s - 3600.0 < each <= at_s for each in self.truth.begun_s)
            if count > most:
                return [f"{count} changes of geometry within the hour before {at_s:g} s"]
        return []

    def _identity(self, sent: Sent) -> list[str]:
        if isinstance(sent.instruction.operation, RecutGpu):
            return self._geometry(sent, sent.instruction, sent.instruction.operation)
        return super()._identity(sent)

    def _geometry(self, sent: Sent, order: Instruction, operation: RecutGpu) -> list[str]:
        """In the view, the GPU has the geometry that the instruction expects, and no work on what goes."""
        snapshot = sent.observation.snapshot
        (gpu,) = [row for row, uuid in enumerate(snapshot.gpus.uuid.tolist()) if uuid == order.subject.uid]
        mine = snapshot.instances.gpu == gpu
        cuts = {
            row: (snapshot.names.profiles[int(snapshot.instances.profile[row])], int(snapshot.instances.start[row]))
            for row in mine.nonzero()[0].tolist()
        }
        wrong = [] if set(cuts.values()) == set(operation.before or ()) else ["the view has another geometry"]
        used = {cuts[row] for row in snapshot.placements.instance.tolist() if row in cuts}
        return wrong if used <= set(operation.after or ()) else [*wrong, "an instance in use would be destroyed"]

    def _victim(self, sent: Sent, entry: InFlight) -> list[str]:
        wrong = super()._victim(sent, entry)
        if entry.action != "suspend_idle":
            return wrong
        wrong = [each for each in wrong if each != "not preemptible"]  # above its guarantee it may be suspended
        noticed_s = self.truth.noticed_s.get(sent.instruction.subject.uid)
        if sent.instruction.kind == "evict" and noticed_s is None:
            wrong.append("suspended without a notice")
        elif sent.instruction.kind == "evict" and noticed_s is not None and sent.true_s < noticed_s + GRACE_S - 1.0:
            wrong.append(f"suspended {sent.true_s - noticed_s:g} s after its notice")
        return wrong


class HostileCuts(Hostile):
    """See the module."""

    calm_policy = CUT_POLICY
    effects = ("admit", "evict", "resize", "scale", "notify", "recut")
    cluster: CutCluster

    def world(self) -> tuple[CutCluster, Ports, Watch]:
        """A cluster with a node of MIG GPUs."""
        cluster = CutCluster()
        ports = Ports(cluster, self.calm_policy)
        return cluster, ports, CutWatch(ports)

    @initialize(profiles=st.lists(st.integers(0, len(PROFILES) - 1), min_size=2, max_size=6), data=st.data())
    def begin_cut(self, profiles: list[int], data: st.DataObject) -> None:
        """Some requests for instances."""
        for profile in profiles:
            self._request(profile, data.draw(kinds()))

    def _request(self, profile: int, columns: dict[str, Any]) -> None:
        self.cluster.submit(f"w{self.cluster.made}", gpus=1, mig_profile=profile, **columns)

    @happens(profile=st.integers(0, len(PROFILES) - 1), data=st.data())
    def request(self, profile: int, data: st.DataObject) -> None:
        """A request for an instance."""
        self._request(profile, data.draw(kinds()))

    @happens(gpu=st.sampled_from(CUT), after=st.sampled_from(SHAPES))
    def tamper(self, gpu: int, after: Any) -> None:
        """Somebody else cuts a GPU."""
        self.cluster.tamper(gpu, after)

    @happens()
    def fail_half_way(self) -> None:
        """The next change of geometry fails."""
        self.cluster.fails_next = True

    @happens()
    def mend(self) -> None:
        """Failed GPUs are repaired."""
        self.cluster.mend()

    @happens(data=st.data(), hours=st.integers(1, 2))
    def owners_are_away(self, data: st.DataObject, hours: int) -> None:
        """Some running gangs rest for hours."""
        self._see_all()
        running = [gang for gang in self.cluster.gangs.values() if gang.state == State.RUNNING]
        for gang in running:
            gang.hangs = bool(data.draw(st.booleans()))
        self._calm_ticks(15 * hours, 240.0)

    @precondition(lambda self: any(gang.columns.get("gate") for gang in self.cluster.gangs.values()))
    @happens(data=st.data())
    def owner_returns(self, data: st.DataObject) -> None:
        """An owner resumes suspended work."""
        away = sorted(gang.name for gang in self.cluster.gangs.values() if gang.columns.get("gate"))
        self.cluster.gangs[data.draw(st.sampled_from(away))].columns["gate"] = int(Gate.OPEN)

    def _calm(self) -> None:
        self.cluster.mend()
        self.cluster.fails_next = False
        for gang in self.cluster.gangs.values():
            gang.columns["gate"] = int(Gate.OPEN)
        super()._calm()

    def _unfinished(self) -> str:
        """The same for instances: requests wait although an instance of their profile is free."""
        whole = {name: gang for name, gang in self.cluster.gangs.items() if "mig_profile" not in gang.columns}
        every, self.cluster.gangs = self.cluster.gangs, whole
        found = super()._unfinished()
        self.cluster.gangs = every
        if found:
            return found
        for gang in self.cluster.gangs.values():
            columns = gang.columns
            waits = gang.state == State.PENDING and columns.get("preemptible", True) and not columns.get("excluded")
            if "mig_profile" in columns and waits:
                free = self.cluster.free_instances(PROFILES[columns["mig_profile"]])
                if columns["gpus"] <= free:
                    return f"{free} instances of {PROFILES[columns['mig_profile']]} are free, and {gang.name} waits"
        return ""
