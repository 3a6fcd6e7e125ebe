"""The hardware of a case: nodes, GPUs, MIG instances, topology and labels, and who sits where.

A node's whole GPUs come first, then as many GPUs in MIG mode as its instances take. `Fleet.seat` hands
out GPUs to work that runs already: the fullest shared GPU that has room, else the lowest free one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from autopilot.core.hardware import mig
from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import GPU_MILLI, GpuTable, InstanceTable, NodeTable, Topology, make
from tests.conformance.cases import Case, Node, Task

WHOLE_GPU_MODEL = "A100-80GB"
"""Model of the GPUs of a case without MIG: any will do."""

LEVELS = {
    "node": Topology.ISLAND,
    "host": Topology.ISLAND,
    "hostname": Topology.ISLAND,
    "island": Topology.ISLAND,
    "rack": Topology.LEAF,
    "leaf": Topology.LEAF,
    "block": Topology.BLOCK,
    "zone": Topology.ZONE,
}
OF_ONE_NODE = ("node", "host", "hostname")
"""Levels whose domain is the node itself."""


@dataclass(frozen=True)
class Size:
    """What one member asks for: whole GPUs, `milli` of one GPU, or MIG instances. `width` counts the entries."""

    width: int
    milli: int = 0
    profiles: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Seat:
    """What one member holds: its node, and rows (GPU, instance or -1)."""

    node: str
    rows: tuple[tuple[int, int], ...]
    milli: int  # of each GPU; 0 beside an instance


@dataclass
class Fleet:
    """Tables of the hardware, and what of it is allocated."""

    boxes: list[Node]
    models: tuple[str, ...]
    profiles: tuple[str, ...]
    labels: tuple[str, ...]
    levels: dict[str, Topology]
    nodes: NodeTable
    gpus: GpuTable
    instances: InstanceTable
    beyond: str  # node that holds what runs beyond the pool of a quota case; "" when nothing does
    _left: dict[int, int] = field(default_factory=dict)  # whole-mode GPU row -> milli that are free
    _free: dict[int, tuple[str, str]] = field(default_factory=dict)  # instance row -> (node, profile)
    selectors: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})

    def selector(self, pairs: Iterable[tuple[str, str]]) -> int:
        """The number of the selector of these labels."""
        asked = tuple(sorted(self.labels.index(f"{key}={value}") for key, value in pairs))
        return self.selectors.setdefault(asked, len(self.selectors))

    def carries(self, node: str, selector: Mapping[str, str]) -> bool:
        """True when a node has all the labels of a selector."""
        labels = next(box.labels for box in self.boxes if box.name == node)
        return all(labels.get(key) == value for key, value in selector.items())

    def seat(self, task: Task, size: Size) -> Seat:
        """Hand out what a running member holds. Raises `InputError` when its node has no room for it."""
        named = [task.node] if task.node is not None and any(b.name == task.node for b in self.boxes) else None
        if self.beyond:  # only quota counts: a member may sit on both nodes
            rows = self._take([box.name for box in self.boxes], size)
            return Seat("pool", rows or (), GPU_MILLI)
        for node in named or [box.name for box in self.boxes if self.carries(box.name, task.node_selector)]:
            rows = self._take([node], size)
            if rows is not None:
                return Seat(node, rows, 0 if size.profiles else size.milli or GPU_MILLI)
        raise InputError(
            f"task {task.name}: it runs, but {task.node or 'no node'} has no room for it; "
            "correct the node's size or the tasks on it"
        )

    def _take(self, nodes: Sequence[str], size: Size) -> tuple[tuple[int, int], ...] | None:
        if size.profiles:
            return self._take_instances(nodes[0], size)
        mine = [row for row in self._left if str(self.nodes.id[self.gpus.node[row]]) in nodes]
        ask = size.milli or GPU_MILLI
        fits = sorted((row for row in mine if self._left[row] >= ask), key=lambda row: (self._left[row], row))
        if len(fits) < size.width:
            return None
        for row in fits[: size.width]:
            self._left[row] -= ask
        return tuple((row, -1) for row in fits[: size.width])

    def _take_instances(self, node: str, size: Size) -> tuple[tuple[int, int], ...] | None:
        rows: list[int] = []
        for profile, count in size.profiles:
            free = [row for row, at in self._free.items() if at == (node, profile) and row not in rows]
            if len(free) < count:
                return None
            rows += free[:count]
        for row in rows:
            del self._free[row]
        return tuple((int(self.instances.gpu[row]), row) for row in rows)


def scale_of(case: Case) -> int:
    """The smallest factor that makes every GPU number of a quota case whole; 1 elsewhere.

    On nodes a fraction is a share of one GPU and cannot be scaled.
    """
    if case.kind != "quota":
        return 1
    numbers = [task.gpus for gang in case.gangs for task in gang.tasks]
    for queue in case.queues:
        numbers += [n for n in (queue.guaranteed, queue.limit, queue.borrow_limit, queue.lend_limit) if n is not None]
    factor = 1
    for number in numbers:
        factor *= Fraction(number * factor).limit_denominator(1000).denominator
    return factor


def whole(number: float, scale: int, what: str) -> int:
    """`number` GPUs in units of the case. Raises `InputError` where that is no whole number."""
    scaled = Fraction(number * scale).limit_denominator(1000)
    if scaled.denominator != 1:
        raise InputError(f"{what}: {number:g} GPUs; where nodes matter only a task may ask for a part of a GPU")
    return int(scaled)


def size_of(task: Task, scale: int) -> Size:
    """What a member asks for. Raises `InputError` for a mix, and for a fraction above one GPU."""
    profiles = tuple((canonical(name), count) for name, count in task.mig.items() if count)
    if profiles and task.gpus:
        raise InputError(f"task {task.name}: it asks for GPUs and MIG instances; one of both can be told")
    if profiles:
        return Size(sum(count for _, count in profiles), profiles=profiles)
    milli = Fraction(task.gpus * scale).limit_denominator(GPU_MILLI)
    if milli < 1 and milli.denominator > 1:
        return Size(1, milli=round(milli * GPU_MILLI))
    return Size(whole(task.gpus, scale, f"task {task.name}"))


def canonical(profile: str) -> str:
    """The name of a MIG profile as the facts write it; an unknown name is kept, and matches no GPU."""
    name = mig.find_profile_name(profile)
    return name.gpu_instance if name else profile


def build_fleet(case: Case, scale: int) -> Fleet:
    """The hardware of a case. Raises `InputError` for what no GPU can carry."""
    boxes, beyond = _boxes(case, scale)
    moves_tried = sorted({canonical(name) for gang in case.gangs for task in gang.tasks for name in task.mig})
    cut = _cuts(boxes, moves_tried)
    models = tuple(dict.fromkeys(model for model, _ in cut)) or (WHOLE_GPU_MODEL,)
    profiles = tuple(dict.fromkeys([*moves_tried, *(p.profile for _, gpus in cut for gpu in gpus for p in gpu)]))
    counts = [box.gpus + len(gpus) for box, (_, gpus) in zip(boxes, cut, strict=True)]
    first = [sum(counts[:at]) for at in range(len(counts))]
    levels = _levels(case)
    labels = _labels(case, levels)
    gpu_rows = [(at, index, index >= box.gpus) for at, box in enumerate(boxes) for index in range(counts[at])]
    places = [
        (first[at] + boxes[at].gpus + number, place, gi)
        for at, (_, gpus) in enumerate(cut)
        for number, gpu in enumerate(gpus)
        for gi, place in enumerate(gpu)
    ]
    nodes = make(
        NodeTable,
        id=[box.name for box in boxes],
        first_gpu=first,
        gpus=counts,
        gpu_model=[models.index(model) for model, _ in cut],
        cordoned=[box.name == beyond for box in boxes],
        labels=np.packbits(np.array([_carried(box, labels) for box in boxes], np.bool_), axis=1, bitorder="little"),
        **{
            level.name.lower(): _domains(boxes, levels, level)
            for level in (Topology.ISLAND, Topology.LEAF, Topology.BLOCK, Topology.ZONE)
        },
    )
    gpus = make(
        GpuTable,
        uuid=[f"GPU-{boxes[at].name}-{index}" for at, index, _ in gpu_rows],
        node=[at for at, _, _ in gpu_rows],
        index=[index for _, index, _ in gpu_rows],
        mig=[is_mig for _, _, is_mig in gpu_rows],
    )
    instances = make(
        InstanceTable,
        id=[f"{gpus.uuid[gpu]}/{gi}" for gpu, _, gi in places],
        gpu=[gpu for gpu, _, _ in places],
        profile=[profiles.index(p.profile) for _, p, _ in places],
        start=[p.start for _, p, _ in places],
        gi_id=[gi for _, _, gi in places],
    )
    return Fleet(
        boxes,
        models,
        profiles,
        labels,
        levels,
        nodes,
        gpus,
        instances,
        beyond,
        {row: GPU_MILLI for row, (_, _, is_mig) in enumerate(gpu_rows) if not is_mig},
        {row: (boxes[gpu_rows[gpu][0]].name, place.profile) for row, (gpu, place, _) in enumerate(places)},
    )


def _boxes(case: Case, scale: int) -> tuple[list[Node], str]:
    """The nodes; for a quota case one as large as the pool, and one for what runs beyond it, closed to new work."""
    if case.kind != "quota":
        return list(case.nodes), ""
    pool = sum(whole(queue.guaranteed, scale, f"queue {queue.name}") for queue in case.queues)
    held = sum(
        size_of(task, scale).width
        for gang in case.gangs
        for task in gang.tasks
        if task.state in {"running", "releasing", "terminating_stuck"}
    )
    boxes = [Node(name="pool", gpus=pool)]
    if held <= pool:
        return boxes, ""
    return [*boxes, Node(name="beyond the pool", gpus=held - pool)], "beyond the pool"


def _cuts(boxes: Sequence[Node], moves_tried: Sequence[str]) -> list[tuple[str, list[list[mig.Placement]]]]:
    """Each node's GPU model, one for all where one knows all profiles, and its instances by GPU."""
    common = _model([name for box in boxes for name in box.mig_instances], moves_tried)
    cuts = []
    for box in boxes:
        own = [canonical(name) for name, count in box.mig_instances.items() for _ in range(count)]
        model = common or _model(own, moves_tried)
        if model is None:
            raise InputError(f"node {box.name}: no GPU model has all of {', '.join(sorted(set(own)))}")
        cuts.append((model, _cut(model, own)))
    return cuts


def _model(profiles: Sequence[str], moves_tried: Sequence[str]) -> str | None:
    """A model that has all of `profiles`, and of those `wished` as many as can be; None when none has."""
    if not profiles:
        return WHOLE_GPU_MODEL
    knows = [model for model in mig.MODELS if all(mig.find_profile(model, name) for name in profiles)]
    best = max(
        knows, key=lambda each: sum(mig.find_profile(each, name) is not None for name in moves_tried), default=None
    )
    return best.name if best else None


def _cut(model: str, profiles: Sequence[str]) -> list[list[mig.Placement]]:
    """Instances, the largest first, each on the first GPU that still has room for it."""
    gpus: list[list[mig.Placement]] = []
    for name in sorted(profiles, key=lambda each: -mig.model_profile(model, each).memory_slices):
        for gpu in [*gpus, []]:
            places = mig.fits(model, gpu, [name])
            if places is not None:
                if not gpu:
                    gpus.append(gpu)
                gpu.extend(places)
                break
    return gpus


def _levels(case: Case) -> dict[str, Topology]:
    """The level of topology that each word of the case stands for. Raises `InputError` when they are too many."""
    words = {key for box in case.nodes for key in box.labels if key in LEVELS}
    asked = {word for gang in case.gangs for word in (gang.topology.required, gang.topology.preferred) if word}
    levels = {word: LEVELS[word] for word in sorted(words | asked) if word in LEVELS}
    for word in sorted(asked - levels.keys()):
        spare = [each for each in (Topology.BLOCK, Topology.ZONE, Topology.LEAF) if each not in levels.values()]
        if not spare:
            raise InputError(f"topology {word}: a case may use three levels above the node")
        levels[word] = spare[0]
    return levels


def domain(labels: Mapping[str, str], node: str, levels: Mapping[str, Topology], word: str) -> tuple[str, ...] | None:
    """The domain of a node at a level, told by the labels of that level and the known ones above; None without."""
    if word in OF_ONE_NODE:
        return (node,)
    if word not in labels:
        return None
    above = [each for each in levels if each in LEVELS and word in LEVELS and levels[each] > levels[word]]
    return (*(labels.get(each, "") for each in above), labels[word])


def _domains(boxes: Sequence[Node], levels: Mapping[str, Topology], level: Topology) -> list[int]:
    """Codes of the domains at one level: a separate one for a node outside all of them, one for all where no node has a
    domain.
    """
    words = [word for word in levels if levels[word] == level]
    found = [next((d for w in words if (d := domain(box.labels, box.name, levels, w))), None) for box in boxes]
    if not any(found) and level != Topology.ISLAND:
        return [0] * len(boxes)
    known = list(dict.fromkeys(each for each in found if each))
    return [known.index(each) if each else len(known) + at for at, each in enumerate(found)]


def _labels(case: Case, levels: Mapping[str, Topology]) -> tuple[str, ...]:
    """Labels that selectors name, first, then those that nodes carry; "rack=*" says that a node has a rack."""
    asked = Counter(pair for gang in case.gangs for task in gang.tasks for pair in task.node_selector.items())
    carried = Counter(pair for box in case.nodes for pair in box.labels.items())
    names = [f"{word}=*" for word in levels] + [f"{key}={value}" for key, value in [*asked, *carried]]
    return tuple(dict.fromkeys(names))


def _carried(box: Node, labels: Sequence[str]) -> list[bool]:
    own = {f"{key}={value}" for key, value in box.labels.items()}
    own |= {f"{key}=*" for key in (*box.labels, *OF_ONE_NODE)}
    return [label in own for label in labels]
