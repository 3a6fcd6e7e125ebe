"""The hostile cluster with MIG instances that are cut anew, and with owners who are away.

The GPUs of the last node are in MIG mode. A gang of instances holds them as (GPU row, profile, first slice). A change
of geometry takes time, may fail half-way, may report success without effect, and may come from somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.hardware import mig
from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.model.records import Geometry, Instruction, Telemetry
from autopilot.core.model.snapshot import ClusterSnapshot, Gate, Recut, State
from autopilot.core.model.stops import StopReason
from tests.hostile.world import GPUS, HOLDING, NODES, PER_NODE, TENANTS, WINDOWS_S, Cluster, Gang, queues
from tests.kits.core_world import MODELS, Item, snapshot_on
from tests.kits.hardware_world import PROFILES, Hardware, hardware
from tests.kits.idle_world import STILL

CUT = range(GPUS - PER_NODE, GPUS)
"""GPU rows in MIG mode."""
MODEL = MODELS[0]
SMALL: Geometry = tuple(("1g.10gb", start) for start in range(7))
SHAPES: tuple[Geometry, ...] = (
    SMALL,
    (("3g.40gb", 0), ("3g.40gb", 4)),
    (("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)),
    (("7g.80gb", 0),),
)
"""Geometries that somebody else may cut."""
CHANGE_S = 60.0
Instance = tuple[int, str, int]


@dataclass
class Change:
    """A change of geometry under way, with what it ends with."""

    after: Geometry
    ends_s: float
    fails: bool


@dataclass
class CutCluster(Cluster):
    """See the module."""

    cuts: dict[int, Geometry] = field(default_factory=lambda: dict.fromkeys(CUT, SMALL))
    changes: dict[int, Change] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    holds: dict[str, tuple[Instance, ...]] = field(default_factory=dict)  # by uid of the gang
    fails_next: bool = False
    noticed_s: dict[str, float] = field(default_factory=dict)  # uid -> when its owner was notified
    begun_s: list[float] = field(default_factory=list)  # when changes began that the controller asked for

    # --- truth --------------------------------------------------------------------------------------

    def in_use(self, gpu: int) -> set[tuple[str, int]]:
        """Instances of a GPU that hold work."""
        return {(profile, start) for held in self.holds.values() for at, profile, start in held if at == gpu}

    def shown(self, gpu: int) -> Geometry:
        """The geometry that the node reports; while it changes, what stays."""
        change = self.changes.get(gpu)
        return self.cuts[gpu] if change is None else tuple(cut for cut in self.cuts[gpu] if cut in change.after)

    def instance(self, name: str) -> Instance | None:
        """The instance that an id names now; None where there is none."""
        gpu, number = int(name.partition("/")[0].removeprefix("GPU-")), int(name.partition("/")[2]) - 7
        cuts = self.shown(gpu) if gpu in self.cuts else ()
        return (gpu, *cuts[number]) if 0 <= number < len(cuts) else None

    def names(self, held: Iterable[Instance]) -> set[str]:
        """Ids of instances."""
        return {f"GPU-{gpu}/{7 + self.shown(gpu).index((profile, start))}" for gpu, profile, start in held}

    def places(self, gang: Gang) -> set[str]:
        """The GPUs or instances that a gang holds."""
        return super().places(gang) | self.names(self.holds.get(gang.uid, ()))

    def free(self) -> int:
        """Free whole GPUs."""
        down = sum(gpu // PER_NODE in self.down for gpu in CUT)
        return super().free() - (PER_NODE - down)

    def free_instances(self, profile: str) -> int:
        """Free instances of a profile on healthy GPUs that do not change."""
        found = 0
        for gpu in CUT:
            if gpu // PER_NODE not in self.down and gpu not in self.changes and gpu not in self.failed:
                used = self.in_use(gpu)
                found += sum(cut[0] == profile and cut not in used for cut in self.cuts[gpu])
        return found

    def lose_node(self, node: int) -> None:
        """A node fails, with the work on its instances."""
        super().lose_node(node)
        for gang in self.gangs.values():
            if any(gpu // PER_NODE == node for gpu, _, _ in self.holds.get(gang.uid, ())):
                self._stop(gang)

    def _stop(self, gang: Gang) -> None:
        self.holds.pop(gang.uid, None)
        super()._stop(gang)

    def finish(self, name: str) -> None:
        """The work ends by itself."""
        self.holds.pop(self.gangs[name].uid, None)
        super().finish(name)

    def delete(self, name: str) -> None:
        """Its owner deletes it."""
        self.holds.pop(self.gangs[name].uid, None)
        super().delete(name)

    # --- changes of geometry -------------------------------------------------------------------------

    def tamper(self, gpu: int, after: Geometry) -> bool:
        """Somebody else cuts the GPU at once, where nothing in use is destroyed."""
        if gpu in self.changes or not self.in_use(gpu) <= set(after):
            return False
        self.cuts[gpu] = after
        return True

    def mend(self) -> None:
        """Changes that failed are repaired: the node reports its geometry as settled."""
        self.failed.clear()

    def pass_time(self, seconds: float) -> None:
        """Changes that are due end."""
        super().pass_time(seconds)
        for gpu, change in list(self.changes.items()):
            if change.ends_s <= self.true_s:
                stays = self.shown(gpu)
                del self.changes[gpu]
                self.cuts[gpu] = stays if change.fails else change.after
                self.failed |= {gpu} if change.fails else set()

    def _recut(self, order: Instruction, operation: RecutGpu) -> str:
        gpu = int(order.subject.uid.removeprefix("GPU-"))
        before, after = operation.before, operation.after
        if gpu // PER_NODE in self.down or gpu in self.changes or gpu not in self.cuts or before is None:
            return "the GPU cannot be cut now"
        if set(self.cuts[gpu]) != set(before):
            return "another geometry"
        lost = self.in_use(gpu) - set(after or ())
        if lost:
            self.problems.append(f"{order.id} destroys {sorted(lost)} of GPU {gpu}, which are in use")
            return "in use"
        if after is None or not mig.is_legal(MODEL, after):
            self.problems.append(f"{order.id}: {after} is not legal")
            return "illegal"
        self.begun_s.append(self.true_s)
        self.changes[gpu] = Change(
            tuple(sorted(after, key=lambda cut: cut[1])), self.true_s + CHANGE_S, self.fails_next
        )
        self.fails_next = False
        return ""

    # --- effects -------------------------------------------------------------------------------------

    def refusal(self, order: Instruction) -> str:
        """Changes of geometry and notices have preconditions of their own."""
        if isinstance(order.operation, RecutGpu):
            return ""
        refusal = super().refusal(order)
        nodes = {int(slot.gpu.removeprefix("GPU-")) // PER_NODE for slot in order.operation.slots}
        return refusal or ("node is down" if nodes & self.down else "")

    def carry_out(self, order: Instruction) -> str:
        """The effect takes place now; why not, or ""."""
        if isinstance(order.operation, RecutGpu):
            return self._recut(order, order.operation)
        refusal = self.refusal(order)
        if refusal:
            return refusal
        gang = self.gangs[order.subject.name]
        if order.kind == "notify":
            self.noticed_s.setdefault(gang.uid, self.true_s)
            return ""
        if isinstance(order.operation, EvictOperation) and order.operation.reason == StopReason.IDLE:
            gang.columns["gate"] = int(Gate.REJECTED)  # its owner resumes it
        if not any(slot.instance for slot in order.operation.slots):
            return super().carry_out(order)
        return self._start_on(gang, order)

    def _start_on(self, gang: Gang, order: Instruction) -> str:
        """Start on instances, which must be there, free, and of the profile."""
        wanted = PROFILES[gang.columns["mig_profile"]]
        found = [self.instance(slot.instance) for slot in order.operation.slots]
        places = tuple(each for each in found if each is not None)
        if len(places) < len(found) or any(profile != wanted for _, profile, _ in places):
            return "another instance"
        if any(gpu in self.changes for gpu, _, _ in places):
            return "its geometry changes"
        taken = {each for held in self.holds.values() for each in held}
        if taken & set(places):
            self.problems.append(f"{gang.name} starts on {sorted(taken & set(places))}, which are in use")
            return "in use"
        gang.columns["start_s"], gang.state = self.true_s, State.RUNNING
        self.holds[gang.uid] = places
        return ""

    # --- views ---------------------------------------------------------------------------------------

    def view(self, items: Iterable[Item] | None = None) -> ClusterSnapshot:
        """The tables as a truthful collector sees them."""
        first, rows = 0, dict[Instance, int]()
        for gpu in CUT:
            rows.update({(gpu, *cut): first + place for place, cut in enumerate(self.shown(gpu))})
            first += len(self.shown(gpu))
        known = {gang.name: gang for gang in (*self.ended, *self.gangs.values())}
        given = [gang.item() for gang in (*self.gangs.values(), *self.ended)] if items is None else list(items)
        shown = [self._placed(item, known[item.id], rows) for item in given]
        return snapshot_on(self.reported(), shown, queues=queues(self.limit), tenants=TENANTS)

    def reported(self) -> Hardware:
        """The hardware as its nodes report it."""
        cuts = tuple((gpu, self.shown(gpu)) for gpu in CUT)
        return _hardware(frozenset(self.down), cuts, frozenset(self.failed), frozenset(self.changes))

    def _placed(self, item: Item, gang: Gang, rows: dict[Instance, int]) -> Item:
        """A gang of instances with the rows that it holds."""
        if "mig_profile" not in gang.columns or gang.state not in HOLDING:
            return item
        return replace(item, on=tuple(rows[each] for each in self.holds[gang.uid]))

    def telemetry(self, *, broken: bool) -> Telemetry:
        """All signals of each GPU: it works, or rests with its memory full. Instances are not measured."""
        rests = np.ones(GPUS, np.bool_)
        for gang in self.gangs.values():
            if gang.state == State.RUNNING and not gang.hangs and not broken:
                rests[list(gang.on)] = False
        busy: dict[str, Any] = {"sm_active_ratio": 0.8, "dram_active_ratio": 0.4, "power_w": 320.0}
        mean = np.zeros((len(SIGNALS), len(WINDOWS_S), GPUS), np.float32)
        for place, name in enumerate(SIGNALS):
            still = STILL.get(name, 0.0)
            mean[place] = np.where(rests, still, busy.get(name, still))
        samples = np.broadcast_to(np.array([[2], [60]], np.int32), (len(WINDOWS_S), GPUS)).copy()
        uuids = np.array([f"GPU-{gpu}" for gpu in range(GPUS)], object)
        quality = np.full(GPUS, Quality.SM_ACTIVE, np.int8)
        most, memory = mean * 1.02, SIGNALS.index("fb_used_mib")
        most[memory] = mean[memory]  # the memory in use of work that rests does not change
        return Telemetry(SIGNALS, WINDOWS_S, uuids, mean, most, samples, np.zeros(GPUS, np.float32), quality)


@lru_cache(maxsize=256)
def _hardware(
    down: frozenset[int], cuts: tuple[tuple[int, Geometry], ...], failed: frozenset[int], changing: frozenset[int]
) -> Hardware:
    return hardware(
        f"{NODES}x{PER_NODE}",
        nodes={"ready": [node not in down for node in range(NODES)]},
        cuts=dict(cuts),
        recuts={**dict.fromkeys(failed, Recut.FAILED), **dict.fromkeys(changing, Recut.CHANGING)},
    )
