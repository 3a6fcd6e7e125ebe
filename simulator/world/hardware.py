"""Nodes, GPUs and MIG instances of the simulated cluster: allocations and free capacity.

Whole GPUs are the fast path: each node has a bit mask of its free GPUs, and schedulable nodes are kept by their number
of free GPUs, as bit sets (bit n = node n), so that "the fullest fitting node, lowest index first" takes a few integer
operations at any number of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from autopilot.core.hardware.mig import find_gpu_model
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import GPU_MILLI, Topology
from simulator.specs.inventory import FIRST_GI_ID
from simulator.world.allocation import BROKEN, CUT, FREE, SHARED, Held, Instance, Refusal, bits
from simulator.world.split import Split
from simulator.world.work import Shape

__all__ = ["BROKEN", "CUT", "FREE", "SHARED", "Hardware", "Held", "Instance", "Refusal", "bits"]


class Hardware:
    """Mutable state of the hardware; every public column is a list by node or by GPU row."""

    def __init__(self, inventory: Inventory, gpu_memory_mib: dict[str, int | None] | None = None) -> None:
        """`gpu_memory_mib` by GPU model; None or absent: unknown, hence no constraint."""
        nodes, gpus = inventory.nodes, inventory.gpus
        self.inventory = inventory
        self.node_gpus: list[int] = nodes.gpus.tolist()
        self.first_gpu: list[int] = nodes.first_gpu.tolist()
        self.node_of: list[int] = gpus.node.tolist()
        self.gpu_bit: list[int] = [1 << index for index in gpus.index.tolist()]
        self.model_of: list[int] = nodes.gpu_model.tolist()
        self.domain: dict[int, list[int]] = {
            Topology.ISLAND: nodes.island.tolist(),
            Topology.LEAF: nodes.leaf.tolist(),
            Topology.BLOCK: nodes.block.tolist(),
            Topology.ZONE: nodes.zone.tolist(),
        }
        memory = gpu_memory_mib or {}
        self.gpu_memory_mib: list[int | None] = [memory.get(name) for name in inventory.names.gpu_models]
        self.ready: list[bool] = nodes.ready.tolist()
        self.cordoned: list[bool] = nodes.cordoned.tolist()
        self.closed: set[int] = set()  # GPUs of nodes that change how they are shared
        self.stopped: set[int] = set()  # GPUs whose clients are stopped while their MIG geometry changes
        self.reclaim_at_s: list[float] = np.nan_to_num(nodes.reclaim_at_s, nan=inf).tolist()
        self.healthy: list[bool] = gpus.healthy.tolist()
        self.cpu_free: list[int] = nodes.cpu_milli.tolist()
        self.memory_free: list[int] = nodes.memory_mib.tolist()
        self.limits_cpu = [cpu >= 0 for cpu in self.cpu_free]
        self.limits_memory = [size >= 0 for size in self.memory_free]
        self.holder = [FREE if ok else BROKEN for ok in self.healthy]
        self.shares: dict[int, dict[int, int]] = {}  # GPU -> {job: milli}
        self.mig: list[bool] = gpus.mig.tolist()
        self.instances: list[Instance] = []
        self.instance_holder: list[int] = []
        self.cut: dict[int, list[int]] = {}  # GPU -> rows of the instances that exist on it
        self.free_mask = [0] * len(self.node_gpus)
        self.free: list[int] = [0] * len(self.node_gpus)
        self.by_free: list[int] = [0] * (max(self.node_gpus, default=0) + 1)
        self.node_bit = [1 << n for n in range(len(self.node_gpus))]
        self._eligible: dict[tuple[int, int], int] = {}
        for gpu, node in enumerate(self.node_of):
            if self.mig[gpu]:
                self.holder[gpu] = CUT
            elif self.healthy[gpu]:
                self.free_mask[node] |= self.gpu_bit[gpu]
        for node, mask in enumerate(self.free_mask):
            self.free[node] = mask.bit_count()
            if self.is_open(node):
                self.by_free[self.free[node]] |= self.node_bit[node]
        self.split = Split(self)
        table = inventory.instances
        for gpu, code, start, gi_id in zip(table.gpu, table.profile, table.start, table.gi_id, strict=True):
            self.add_instance(int(gpu), inventory.names.profiles[code], int(start), int(gi_id))

    # --- questions ------------------------------------------------------------------------

    @property
    def capacity_milli(self) -> int:
        """The whole cluster in thousandths of a GPU."""
        return GPU_MILLI * len(self.node_of)

    def is_open(self, node: int) -> bool:
        """True if the node may receive work."""
        return self.ready[node] and not self.cordoned[node]

    def eligible(self, shape: Shape) -> int:
        """The nodes with a GPU model open to `shape`, schedulable or not, as a bit set."""
        key = (shape.models, shape.gpu_memory_mib)
        found = self._eligible.get(key)
        if found is None:
            models = [self._allows(shape, code) for code in range(len(self.gpu_memory_mib))]
            found = sum(bit for node, bit in enumerate(self.node_bit) if models[self.model_of[node]])
            self._eligible[key] = found
        return found

    def _allows(self, shape: Shape, model: int) -> bool:
        memory = self.gpu_memory_mib[model]
        return (not shape.models or bool(shape.models >> model & 1)) and (
            not shape.gpu_memory_mib or memory is None or memory >= shape.gpu_memory_mib
        )

    def free_milli(self, gpu: int) -> int:
        """The free part of a GPU for shares."""
        if gpu in self.shares:
            return GPU_MILLI - sum(self.shares[gpu].values())
        return GPU_MILLI if self.holder[gpu] == FREE else 0

    def holders(self, gpu: int) -> list[int]:
        """The jobs on a GPU, whole, by share or by instance, in order of their rows."""
        if self.holder[gpu] >= 0:
            return [self.holder[gpu]]
        found = set(self.shares.get(gpu, ()))
        found.update(self.instance_holder[row] for row in self.cut.get(gpu, ()))
        found.update(self.split.on.get(gpu, ()))
        return sorted(found - {FREE})

    def node_holders(self, node: int) -> list[int]:
        """The jobs on a node, in order of their rows."""
        first = self.first_gpu[node]
        return sorted({job for gpu in range(first, first + self.node_gpus[node]) for job in self.holders(gpu)})

    def lowest_free(self, node: int, count: int) -> list[int]:
        """Rows of the `count` lowest free GPUs of a node."""
        first, mask, rows = self.first_gpu[node], self.free_mask[node], []
        for _ in range(count):
            low = mask & -mask
            rows.append(first + low.bit_length() - 1)
            mask ^= low
        return rows

    # --- taking and giving ----------------------------------------------------------------

    def take(self, job: int, shape: Shape, gpus: Sequence[int], instances: Sequence[int] = ()) -> Held | Refusal:
        """Allocate the GPUs (or shares, or instances) to `job`, all of them or none."""
        if self.stopped and not self.stopped.isdisjoint(gpus):
            return Refusal.NODE_UNFIT
        if self.closed and not self.closed.isdisjoint(gpus):
            return Refusal.OTHER_SHARING
        if self.split and self.split.concerns(gpus):
            held = self._constraint(shape, gpus, instances) or self.split.take(job, shape, gpus)
            if isinstance(held, Held):
                self._count_host(shape, held, -1)
            return held
        if not shape.plain:
            if refusal := self._constraint(shape, gpus, instances):
                return refusal
            if shape.profile:
                held = self._take_instances(job, gpus, instances)
            elif shape.milli:
                held = self._take_share(job, shape.milli, gpus)
            else:
                held = self._take_whole(job, shape, gpus)
            if isinstance(held, Held):
                self._count_host(shape, held, -1)
            return held
        return self._take_whole(job, shape, gpus)

    def _take_whole(self, job: int, shape: Shape, gpus: Sequence[int]) -> Held | Refusal:
        node_of, gpu_bit, free_mask = self.node_of, self.gpu_bit, self.free_mask
        masks: dict[int, int] = {}
        try:
            for gpu in gpus:
                node, bit = node_of[gpu], gpu_bit[gpu]
                seen = masks.get(node, 0)
                if seen & bit or not free_mask[node] & bit or gpu < 0:
                    return self._why_not(gpu, bool(seen & bit))
                masks[node] = seen | bit
        except IndexError:
            return Refusal.UNKNOWN_GPU
        count = len(gpus)
        if count != shape.gpus and (not shape.min_gpus <= count <= shape.gpus or count % shape.per_member):
            return Refusal.WRONG_COUNT
        if len(masks) > 1 and not _members_whole(masks, shape, count):
            return Refusal.SPLIT_MEMBER
        for node in masks:
            if not (self.ready[node] and not self.cordoned[node]):
                return Refusal.NODE_UNFIT
        self._occupy(job, gpus, masks)
        return Held(tuple(gpus), (), masks, GPU_MILLI * count)

    def _occupy(self, job: int, gpus: Sequence[int], masks: dict[int, int]) -> None:
        for node, mask in masks.items():
            self.free_mask[node] ^= mask
            self._move(node, self.free[node] - mask.bit_count())
        holder = self.holder
        for gpu in gpus:
            holder[gpu] = job

    def _release(self, gpus: Sequence[int], masks: dict[int, int]) -> None:
        broken = False
        for gpu in gpus:
            self.holder[gpu] = FREE
            broken = broken or not self.healthy[gpu]
        for node, mask in masks.items():
            usable = self._without_broken(node, mask) if broken else mask
            self.free_mask[node] |= usable
            self._move(node, self.free[node] + usable.bit_count())

    def _move(self, node: int, free: int) -> None:
        if self.ready[node] and not self.cordoned[node]:
            bit = self.node_bit[node]
            self.by_free[self.free[node]] ^= bit
            self.by_free[free] ^= bit
        self.free[node] = free

    def set_free(self, node: int, free: int) -> None:
        """Set the number of free whole GPUs of a node."""
        self._move(node, free)

    def _why_not(self, gpu: int, twice: bool) -> Refusal:
        if twice:
            return Refusal.GPU_TWICE
        if gpu < 0:
            return Refusal.UNKNOWN_GPU
        if not self.healthy[gpu]:
            return Refusal.GPU_BROKEN
        return Refusal.GPU_CUT if self.mig[gpu] else Refusal.GPU_BUSY

    def _constraint(self, shape: Shape, gpus: Sequence[int], instances: Sequence[int]) -> Refusal | None:
        if any(not 0 <= gpu < len(self.node_of) for gpu in gpus):
            return Refusal.UNKNOWN_GPU
        if shape.profile:
            if len(instances) != shape.gpus or len(gpus) != shape.gpus:
                return Refusal.WRONG_COUNT
            for row, gpu in zip(instances, gpus, strict=True):
                if not 0 <= row < len(self.instances) or self.instances[row].gpu != gpu:
                    return Refusal.UNKNOWN_GPU
                if self.instances[row].profile != shape.profile:
                    return Refusal.WRONG_PROFILE
        elif shape.milli and len(gpus) != 1:
            return Refusal.WRONG_COUNT
        nodes = [self.node_of[gpu] for gpu in gpus]
        for node in dict.fromkeys(nodes):
            model = self.model_of[node]
            if not self._allows(shape, model):
                allowed = not shape.models or shape.models >> model & 1
                return Refusal.GPU_MEMORY if allowed else Refusal.WRONG_MODEL
            members = ceil(nodes.count(node) / max(shape.per_member, 1))
            if shape.spread and members > 1:
                return Refusal.TOPOLOGY
            if self.limits_cpu[node] and members * shape.cpu_milli > self.cpu_free[node]:
                return Refusal.CPU
            if self.limits_memory[node] and members * shape.memory_mib > self.memory_free[node]:
                return Refusal.MEMORY
        if shape.topology and len({self.domain[shape.topology][node] for node in nodes}) > 1:
            return Refusal.TOPOLOGY
        return None

    def _take_share(self, job: int, milli: int, gpus: Sequence[int]) -> Held | Refusal:
        gpu = gpus[0]
        node = self.node_of[gpu]
        if not self.healthy[gpu] or self.mig[gpu]:
            return self._why_not(gpu, twice=False)
        if not self.is_open(node):
            return Refusal.NODE_UNFIT
        if self.free_milli(gpu) < milli:
            return Refusal.GPU_BUSY
        if self.holder[gpu] == FREE:
            self.holder[gpu] = SHARED
            self.free_mask[node] ^= self.gpu_bit[gpu]
            self._move(node, self.free[node] - 1)
        self.shares.setdefault(gpu, {})[job] = milli
        return Held((gpu,), (), {node: 0}, milli)

    def _take_instances(self, job: int, gpus: Sequence[int], instances: Sequence[int]) -> Held | Refusal:
        if len(set(instances)) < len(instances):
            return Refusal.GPU_TWICE
        for row, gpu in zip(instances, gpus, strict=True):
            if row not in self.cut.get(gpu, ()):
                return Refusal.UNKNOWN_GPU
            if not self.healthy[gpu]:
                return Refusal.GPU_BROKEN
            if self.instance_holder[row] != FREE:
                return Refusal.GPU_BUSY
            if not self.is_open(self.node_of[gpu]):
                return Refusal.NODE_UNFIT
        for row in instances:
            self.instance_holder[row] = job
        milli = sum(self.instances[row].milli for row in instances)
        return Held(tuple(gpus), tuple(instances), dict.fromkeys((self.node_of[g] for g in gpus), 0), milli)

    def resize(self, job: int, shape: Shape, held: Held, gpus: Sequence[int]) -> Held | Refusal:
        """Replace the GPU rows in `held` of `job` by exactly these, more of them or fewer; the whole change or none.

        The kept GPUs may be on unschedulable nodes.
        """
        was, now = set(held.gpus), set(gpus)
        if not shape.whole or (self.split and self.split.concerns((*held.gpus, *gpus))):
            return Refusal.NOT_ELASTIC
        if len(now) < len(gpus):
            return Refusal.GPU_TWICE
        if not (was < now or now < was):
            return Refusal.NOT_NESTED
        count = len(gpus)
        if not shape.min_gpus <= count <= shape.gpus or (count < shape.gpus and count % shape.per_member):
            return Refusal.WRONG_COUNT
        masks: dict[int, int] = {}
        for gpu in gpus:
            if not 0 <= gpu < len(self.node_of):
                return Refusal.UNKNOWN_GPU
            node, bit = self.node_of[gpu], self.gpu_bit[gpu]
            if gpu not in was and not self.free_mask[node] & bit:
                return self._why_not(gpu, twice=False)
            if gpu not in was and not self.is_open(node):
                return Refusal.NODE_UNFIT
            masks[node] = masks.get(node, 0) | bit
        if len(masks) > 1 and not _members_whole(masks, shape, count):
            return Refusal.SPLIT_MEMBER
        if not shape.plain:
            self._count_host(shape, held, 1)
            if refusal := self._constraint(shape, gpus, ()):
                self._count_host(shape, held, -1)
                return refusal
        self._release(list(was - now), {node: mask & ~masks.get(node, 0) for node, mask in held.masks.items()})
        self._occupy(job, list(now - was), {node: mask & ~held.masks.get(node, 0) for node, mask in masks.items()})
        changed = Held(tuple(gpus), (), masks, GPU_MILLI * count)
        if not shape.plain:
            self._count_host(shape, changed, -1)
        return changed

    def give(self, job: int, shape: Shape, held: Held) -> None:
        """Release the GPUs of `job`."""
        if self.split and self.split.concerns(held.gpus):
            self.split.give(job, held.gpus)
        elif held.instances:
            for row in held.instances:
                self.instance_holder[row] = FREE
        elif shape.milli:
            self._give_share(job, held.gpus[0])
        else:
            self._release(held.gpus, held.masks)
        if not shape.plain:
            self._count_host(shape, held, 1)

    def _without_broken(self, node: int, mask: int) -> int:
        for index in bits(mask):
            gpu = self.first_gpu[node] + index
            if not self.healthy[gpu]:
                self.holder[gpu] = BROKEN
                mask ^= self.gpu_bit[gpu]
        return mask

    def _give_share(self, job: int, gpu: int) -> None:
        del self.shares[gpu][job]
        if self.shares[gpu]:
            return
        del self.shares[gpu]
        node = self.node_of[gpu]
        self.holder[gpu] = FREE if self.healthy[gpu] else BROKEN
        if self.healthy[gpu]:
            self.free_mask[node] |= self.gpu_bit[gpu]
            self._move(node, self.free[node] + 1)

    def _count_host(self, shape: Shape, held: Held, sign: int) -> None:
        if not (shape.cpu_milli or shape.memory_mib):
            return
        nodes = [self.node_of[gpu] for gpu in held.gpus]
        for node in held.masks:
            members = ceil(nodes.count(node) / max(shape.per_member, 1))
            self.cpu_free[node] += sign * members * shape.cpu_milli * self.limits_cpu[node]
            self.memory_free[node] += sign * members * shape.memory_mib * self.limits_memory[node]

    # --- changes of the hardware ----------------------------------------------------------

    def set_node(self, node: int, *, ready: bool, cordoned: bool) -> None:
        """Make the node schedulable or unschedulable; running work is not touched."""
        if self.is_open(node):
            self.by_free[self.free[node]] ^= self.node_bit[node]
        self.ready[node], self.cordoned[node] = ready, cordoned
        if self.is_open(node):
            self.by_free[self.free[node]] |= self.node_bit[node]

    def set_gpu(self, gpu: int, *, healthy: bool) -> None:
        """Mark a free GPU as faulty or repaired; an allocated one stays allocated until it is released."""
        if healthy == self.healthy[gpu]:
            return
        self.healthy[gpu] = healthy
        node, bit = self.node_of[gpu], self.gpu_bit[gpu]
        if not healthy and self.free_mask[node] & bit:
            self.holder[gpu] = BROKEN
            self.free_mask[node] ^= bit
            self._move(node, self.free[node] - 1)
        elif healthy and self.holder[gpu] == BROKEN:
            self.holder[gpu] = FREE
            self.free_mask[node] |= bit
            self._move(node, self.free[node] + 1)

    def add_instance(self, gpu: int, profile: str, start: int, gi_id: int = -1) -> int:
        """Create one instance (the caller checks its legality) and return its row."""
        model = find_gpu_model(self.inventory.names.gpu_models[self.model_of[self.node_of[gpu]]])
        facts = next((p for p in model.profiles if p.name == profile), None) if model else None
        milli = GPU_MILLI * facts.compute_slices // model.compute_slices if facts and model else 0
        taken = {self.instances[row].gi_id for row in self.cut.get(gpu, ())}
        if gi_id < 0:
            gi_id = next(k for k in range(FIRST_GI_ID, FIRST_GI_ID + 64) if k not in taken)
        self.instances.append(Instance(gpu, profile, start, gi_id, milli))
        self.instance_holder.append(FREE)
        self.cut.setdefault(gpu, []).append(len(self.instances) - 1)
        return len(self.instances) - 1

    def recut(self, gpu: int, geometry: Sequence[tuple[str, int]], *, mig: bool | None = None) -> None:
        """Set the geometry of a GPU; kept instances keep their rows. The caller checks its legality.

        `mig`: MIG mode afterwards; None: on with any instance.
        """
        in_mig = bool(geometry) if mig is None else mig
        node, bit = self.node_of[gpu], self.gpu_bit[gpu]
        if self.free_mask[node] & bit:
            self.free_mask[node] ^= bit
            self._move(node, self.free[node] - 1)
        wanted = list(geometry)
        kept = []
        for row in self.cut.get(gpu, []):
            key = (self.instances[row].profile, self.instances[row].start)
            if key in wanted:
                wanted.remove(key)
                kept.append(row)
        self.cut[gpu] = kept
        for profile, start in wanted:
            self.add_instance(gpu, profile, start)
        self.mig[gpu] = in_mig
        if in_mig:
            self.holder[gpu] = CUT
            return
        del self.cut[gpu]
        self.holder[gpu] = FREE if self.healthy[gpu] else BROKEN
        if self.healthy[gpu]:
            self.free_mask[node] |= bit
            self._move(node, self.free[node] + 1)


def _members_whole(masks: dict[int, int], shape: Shape, count: int) -> bool:
    """True if every member is on one node; only one node may hold the smaller last member."""
    per = shape.per_member
    rest = count % per
    remainders = [mask.bit_count() % per for mask in masks.values()]
    odd = [r for r in remainders if r]
    return not odd or odd == [rest]
