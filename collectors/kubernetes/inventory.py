"""Nodes, GPUs and instances as tables; built again only after a change of a fact of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from autopilot.contract.node_conditions import BAD
from autopilot.contract.notes import shown
from autopilot.core.hardware.mig_facts import MODELS
from autopilot.core.model.objects import SharingConfig
from autopilot.core.model.records import Gap, Inventory
from autopilot.core.model.snapshot import GPU_MILLI, GpuTable, InstanceTable, Names, NodeTable, Recut, empty, make
from collectors.kubernetes import devices, instances, kinds, nodes
from collectors.kubernetes.asks import GPU, Ask
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.constraints import Constraints, NodeIndex, restricting
from collectors.kubernetes.devices import Gpu
from collectors.kubernetes.gangs import PodFacts
from collectors.kubernetes.hints import Hints
from collectors.kubernetes.node_sharing import offers_of
from collectors.kubernetes.nodes import NodeFacts
from collectors.kubernetes.notices import Notices
from collectors.kubernetes.places import Slots
from collectors.kubernetes.sharing import layer_of, vendor_of
from collectors.kubernetes.unreadable import Unreadable
from collectors.kubernetes.wire import Node, Taint

Topology = Mapping[str, tuple[str, ...]]

NAMED = 3
"""Names in a gap; of more it tells the number."""


@dataclass(slots=True)
class Nodes:
    """The nodes with GPUs, and the pods holding them."""

    source: str
    constraints: Constraints
    topology: Topology = field(default_factory=lambda: dict(nodes.TOPOLOGY))
    hints: Hints = field(default_factory=Hints)
    bad: frozenset[tuple[str, str]] = BAD  # conditions against new work
    configs: tuple[SharingConfig, ...] = ()  # of sharing, to which nodes can be turned
    objects: dict[str, Node] = field(default_factory=dict)  # by name
    slots: dict[str, Slots] = field(default_factory=dict)  # by name
    known: dict[str, tuple[Gpu, ...]] = field(default_factory=dict)  # GPUs named by a source, by node
    exported: frozenset[str] = frozenset()  # nodes with GPUs named by an exporter; empty without an exporter
    taints: tuple[Taint, ...] = ()  # against some work
    first_rows: dict[str, tuple[int, int]] = field(default_factory=dict)  # node -> its row, that of its first GPU
    part_rows: dict[tuple[str, int, int], int] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    both_kinds: bool = False  # some offer GPUs as resources, others by claims
    alone: Mapping[str, str] = field(default_factory=dict)  # see `leave_alone`
    used_apart: frozenset[str] = frozenset()  # see `use_apart`
    unreadable: Unreadable = field(default_factory=Unreadable)
    version: int = 0  # rises with every change in the tables
    barred: dict[str, str] = field(default_factory=dict)  # reason against decisions on a node: a layer shares its GPUs
    foreign: dict[str, tuple[str, str]] = field(default_factory=dict)  # resource and maker of accelerators not read
    deleted: list[str] = field(default_factory=list)  # names and UUIDs reported deleted
    _owner: dict[str, str] = field(default_factory=dict)  # the node of each GPU named by a source
    _twice: dict[str, str] = field(default_factory=dict)  # nodes with a GPU of another node
    given: int = 0  # rises with every change of the pods' GPUs
    _notices: Notices = field(default_factory=Notices)
    _given: dict[str, tuple[str, Ask, bool]] = field(default_factory=dict)
    _gaps: tuple[Gap, ...] = ()
    _problems: dict[str, devices.Problems] = field(default_factory=dict)  # (signal, reason), of nodes with any
    _plain: dict[str, Node] = field(default_factory=dict)  # nodes without GPUs, as far as is known
    _orphans: dict[str, dict[str, Ask]] = field(default_factory=dict)  # pods of nodes not known (yet)
    _built: tuple[tuple[int, ...], Inventory] | None = None
    _index: tuple[int, NodeIndex] | None = None

    # --- changes --------------------------------------------------------------------------

    def update(self, changes: Changes, now_s: float) -> bool:
        """Take in the changes; true if a fact of a node changed."""
        before = self.version
        for found in changes.gone:
            self._notices.forget(found.metadata.uid)
            self._plain.pop(found.metadata.name, None)
            self._see_foreign(found.metadata.name, ("", ""))
            known = self.objects.get(found.metadata.name)
            if known is not None and known.metadata.uid == found.metadata.uid:
                self._forget(found.metadata.name, reported=found.metadata.uid in changes.deleted)
        for found in changes.there:
            if isinstance(found, Node):
                with self.unreadable.net(kinds.NODES, found):
                    self._notices.see(found, now_s)
                    self._see(found)
        self._notices.start()
        if self.version != before:
            self._read_taints()
        return self.version != before

    def set_topology(self, topology: Topology) -> None:
        """Labels of the levels, for instance of Kueue's Topology."""
        if topology != self.topology:
            self.topology = topology
            for node in list(self.objects.values()):
                self._see(node)

    def leave_alone(self, nodes: Mapping[str, str]) -> None:
        """Nodes without new work because of an unreadable object, with the reason."""
        self.version += nodes != self.alone
        self.alone = dict(nodes)

    def use_apart(self, nodes: frozenset[str]) -> None:
        """Nodes with pods on parts of unknown GPUs."""
        self.version += nodes != self.used_apart
        self.used_apart = nodes

    def name_gpus(self, known: Mapping[str, tuple[Gpu, ...]], exported: frozenset[str] = frozenset()) -> None:
        """GPUs seen by a source, by node; `exported`: nodes of exporters. A UUID on two nodes counts for neither."""
        owner: dict[str, str] = {}
        twice: dict[str, str] = {}
        for node, gpus in sorted(known.items()):
            for gpu in gpus:
                other = owner.setdefault(gpu.uuid, node)
                if other != node:
                    twice[node], twice[other] = other, node
        usable = {node: gpus for node, gpus in known.items() if node not in twice}
        changed = {name for name in {*usable, *self.known} if usable.get(name) != self.known.get(name)}
        changed |= {
            name for name, slots in self.slots.items() if any(owner.get(gpu.uuid, name) != name for gpu in slots.gpus)
        }
        self.version += exported != self.exported
        self.known, self._owner, self.exported = usable, owner, exported
        self._twice = twice
        for name in sorted(changed):
            found = self.objects.get(name) or self._plain.get(name)
            if found is not None:
                self._see(found, again=True)

    def gpu_mib(self, node: str) -> int:
        """The memory of a GPU of a node; 0 for unknown."""
        slots = self.slots.get(node)
        return slots.facts.gpu_mib if slots is not None else 0

    def share(self, pod: PodFacts) -> int:
        """Thousandths of each GPU requested by the pod; whole ones are whole also where it gets shares of them."""
        slots = self.slots.get(pod.pod.spec.node_name)
        if slots is None:
            return GPU_MILLI
        if pod.parts.gpus:
            return pod.parts.share(slots.facts.gpu_mib) or GPU_MILLI
        named = slots.facts.part_milli(pod.parts.named[0][1]) if pod.parts.named else 0
        return named or (GPU_MILLI // slots.facts.replicas if pod.ask.shares else GPU_MILLI)

    def give(self, node: str, pod: str, ask: Ask, *, leaving: bool = False) -> None:
        """A pod holds GPUs of a node, and may be about to leave."""
        new = (node, ask, leaving)
        if self._given.get(pod) == new:
            return
        self._given[pod] = new
        self.given += 1
        slots = self.slots.get(node)
        if slots is None:
            self._orphans.setdefault(node, {})[pod] = ask
        else:
            slots.give(pod, ask)

    def take(self, node: str, pod: str) -> None:
        """A pod is gone from a node."""
        self._given.pop(pod, None)
        self.given += 1
        orphans = self._orphans.get(node)
        if orphans is not None:
            orphans.pop(pod, None)
            if not orphans:
                del self._orphans[node]
        slots = self.slots.get(node)
        if slots is not None:
            slots.take(pod)

    def _see(self, node: Node, *, again: bool = False) -> None:
        name = node.metadata.name
        before = self.objects.get(name)
        named, layer = len(self.known.get(name, ())), layer_of(node)
        with_gpus, virtual = named > 0 or nodes.has_gpus(node, layer), nodes.virtual(node)
        if with_gpus and virtual and not named:
            self._see_foreign(name, (GPU, f"virtual nodes, {virtual}"))
            self._see_plain(node)
            return
        at_s = self._notices.reclaim_at_s(node)
        facts = None  # they are made before anything is changed
        if with_gpus:
            facts = nodes.facts_of(node, self.topology, named, at_s, layer, self.bad)
        self._see_foreign(name, vendor_of(node) if facts is None else ("", ""))
        if facts is None:
            self._see_plain(node)
            return
        if before is not None and before.metadata.uid != node.metadata.uid:
            self._forget(name, reported=True)
            before = None
        self.objects[name] = node
        self.hints.see(node)
        slots = self.slots.get(name)
        self._plain.pop(name, None)
        labels_changed = before is not None and (
            before.metadata.labels != node.metadata.labels or before.spec.taints != node.spec.taints
        )
        if slots is not None and slots.facts == facts and not labels_changed and not again:
            return
        self.version += 1
        self.barred.pop(name, None)
        if facts.barred:
            self.barred[name] = facts.barred
        gpus = self._gpus(facts)
        if slots is None:
            slots = self.slots[name] = Slots(facts, gpus)
            for pod, ask in self._orphans.pop(name, {}).items():
                slots.give(pod, ask)
        elif slots.gpus != gpus or slots.facts.replicas != facts.replicas:
            self.deleted += sorted({gpu.uuid for gpu in slots.gpus} - {gpu.uuid for gpu in gpus})
            slots.change(facts, gpus)
        else:
            slots.facts = facts

    def _see_plain(self, node: Node) -> None:
        """Take in a node without GPUs that count."""
        name = node.metadata.name
        self._plain[name] = node
        node.status.images = None
        if name in self.objects:
            self._forget(name, reported=True)

    def _see_foreign(self, name: str, found: tuple[str, str]) -> None:
        """Accelerators of another maker on a node without readable GPUs, and GPUs of virtual nodes."""
        if self.foreign.get(name, ("", "")) != found:
            self.version += 1
            self.foreign.pop(name, None)
            if found[0]:
                self.foreign[name] = found

    def _gpus(self, facts: NodeFacts) -> tuple[Gpu, ...]:
        """The GPUs named by a source, and the others of the node."""
        slots, name = self.slots.get(facts.name), facts.name
        before = [gpu for gpu in slots.gpus if self._owner.get(gpu.uuid, name) == name] if slots is not None else []
        known, unlike = instances.agreed(facts, self.known.get(name, ()))
        laid_out = devices.counted(facts)[1] if facts.cut and name not in self.known else ()
        self._problems.pop(name, None)
        if problems := (*facts.problems, *laid_out, *unlike):
            self._problems[name] = problems
        return devices.joined(facts, known, tuple(before))

    def _forget(self, name: str, *, reported: bool) -> None:
        self.objects.pop(name, None)
        self.barred.pop(name, None)
        self._problems.pop(name, None)
        self.hints.forget(name)
        slots = self.slots.pop(name, None)
        if slots is None:
            return
        self.version += 1
        self._orphans[name] = {**slots._asks}  # noqa: SLF001 - its pods may outlive the node's object
        if reported:
            self.deleted += [name, *(gpu.uuid for gpu in slots.gpus)]

    def _read_taints(self) -> None:
        found = {
            (each.key, each.value, each.effect): each
            for node in self.objects.values()
            for each in node.spec.taints or ()
            if restricting(each)
        }
        self.taints = tuple(found[key] for key in sorted(found))

    # --- tables ---------------------------------------------------------------------------

    def _foreign_gaps(self) -> Iterable[Gap]:
        """One for each resource of unread accelerators."""
        nodes_of: dict[tuple[str, str], list[str]] = {}
        for name in sorted(self.foreign):
            nodes_of.setdefault(self.foreign[name], []).append(name)
        for (resource, maker), names in sorted(nodes_of.items()):
            text = f"{len(names)} nodes offer {resource} ({maker}), an unsupported resource: {some(names)}"
            yield Gap(self.source, "", "sharing", f"{text}; no figure and no decision includes it")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Unknown facts of the nodes, as of the last tables, and of the pods on unknown nodes."""
        return (*self._gaps, *self._orphan_gaps())

    def tables(self) -> Inventory:
        """The inventory; the same object as long as nothing changes."""
        key = (self.version, self.constraints.version, self.hints.version)
        if self._built is None or self._built[0] != key:
            self._built = (key, self._build())
        return self._built[1]

    def _build(self) -> Inventory:
        """All tables, nodes by name."""
        ordered = [self.slots[name] for name in sorted(self.slots)]
        self.models = tuple(dict.fromkeys([*self.models, *(each.facts.model for each in ordered)]))
        pools = tuple(dict.fromkeys(each.facts.pool for each in ordered))
        self.both_kinds = len({each.facts.by_claims for each in ordered if each.gpus}) > 1
        offered = {part.profile for each in ordered for gpu in each.gpus for part in gpu.parts}
        known = [p.name for model in MODELS if model.name in self.models for p in model.profiles]
        profiles = tuple(dict.fromkeys([*known, *sorted(offered)]))
        asked = self.constraints
        names = Names(self.models, pools, (), profiles, tuple(asked.labels), tuple(asked.selectors), self.configs)
        self._gaps = tuple(self._find_gaps(ordered))
        sizes = [len(each.gpus) for each in ordered]
        firsts = [0, *accumulate(sizes)]
        self.first_rows = {each.facts.name: (row, firsts[row]) for row, each in enumerate(ordered)}
        return Inventory(names, self._node_table(ordered, pools), *self._hardware(ordered, profiles))

    def _node_table(self, ordered: list[Slots], pools: tuple[str, ...]) -> NodeTable:
        if not ordered:
            nothing: NodeTable = empty(NodeTable)
            return nothing
        facts = [each.facts for each in ordered]
        sizes = np.array([len(each.gpus) for each in ordered], np.int32)
        model_code = {name: code for code, name in enumerate(self.models)}
        pool_code = {name: code for code, name in enumerate(pools)}
        closed = (self._twice, self.alone, self.used_apart)
        table: NodeTable = make(
            NodeTable,
            id=np.array([each.name for each in facts], object),
            pool=[pool_code[each.pool] for each in facts],
            gpu_model=[model_code[each.model] for each in facts],
            first_gpu=np.cumsum(sizes) - sizes,
            gpus=sizes,
            cpu_milli=[each.cpu_milli for each in facts],
            memory_mib=[each.memory_mib for each in facts],
            island=_codes(f"{each.island}|{each.leaf}|{each.block}|{each.zone}" for each in facts),
            leaf=_codes(f"{each.leaf}|{each.block}|{each.zone}" for each in facts),
            block=_codes(f"{each.block}|{each.zone}" for each in facts),
            zone=_codes(each.zone for each in facts),
            ready=[each.ready for each in facts],
            cordoned=[each.cordoned or any(each.name in out for out in closed) for each in facts],
            spot=[each.spot for each in facts],
            reclaim_at_s=[each.reclaim_at_s for each in facts],
            labels=self.constraints.of_nodes(self._indexed(facts)),
            hints=[self.hints.of_node(self.objects[each.name]) for each in facts],
            mig_scopes=[0 if each.name in self.alone else each.mig_scopes for each in facts],
            boot=np.array([each.boot for each in facts], object),
            sharing=[each.sharing for each in facts],
            replicas=[each.replicas for each in facts],
            sharing_offers=[offers_of(self.objects[each.name], self.configs) if each.turns else 0 for each in facts],
            scrubbed_s=[nodes.scrubbed_s(self.objects[each.name]) for each in facts],
        )
        return table

    def _indexed(self, ordered: list[NodeFacts]) -> NodeIndex:
        """The index of these nodes; the same object as long as no fact of a node changes."""
        if self._index is None or self._index[0] != self.version:
            self._index = (self.version, NodeIndex([self.objects[each.name] for each in ordered]))
        return self._index[1]

    def _hardware(self, ordered: list[Slots], profiles: tuple[str, ...]) -> tuple[GpuTable, InstanceTable]:
        rows = [(row, slots, gpu) for row, slots in enumerate(ordered) for gpu in slots.gpus]
        bad = {(slots.facts.name, index) for slots in ordered for index in slots.unhealthy()}
        if not rows:
            return empty(GpuTable), empty(InstanceTable)
        gpus: GpuTable = make(
            GpuTable,
            uuid=np.array([gpu.uuid for _, _, gpu in rows], object),
            node=[row for row, _, _ in rows],
            index=[gpu.index for _, _, gpu in rows],
            healthy=[gpu.usable and (slots.facts.name, gpu.index) not in bad for _, slots, gpu in rows],
            mig=[gpu.mig for _, _, gpu in rows],
            xid=[-1] * len(rows),
            recut=[slots.facts.recut if gpu.mig else Recut.SETTLED for _, slots, gpu in rows],
            on_demand=[
                instances.on_demand(slots.facts.model, gpu.parts, gpu.on_demand) if slots.facts.by_claims else -1
                for _, slots, gpu in rows
            ],
        )
        parts = [
            (place, slots.facts.name, gpu, number, part)
            for place, (_, slots, gpu) in enumerate(rows)
            for number, part in enumerate(gpu.parts)
        ]
        self.part_rows = {(name, gpu.index, number): row for row, (_, name, gpu, number, _) in enumerate(parts)}
        if not parts:
            return gpus, empty(InstanceTable)
        code = {name: number for number, name in enumerate(profiles)}
        return gpus, make(
            InstanceTable,
            id=np.array([f"{gpu.uuid}/{part.gi_id}" for _, _, gpu, _, part in parts], object),
            gpu=[place for place, *_ in parts],
            profile=[code[part.profile] for *_, part in parts],
            start=[part.start for *_, part in parts],
            gi_id=[part.gi_id for *_, part in parts],
        )

    def _find_gaps(self, ordered: list[Slots]) -> Iterable[Gap]:
        yield from self._foreign_gaps()
        for slots in ordered:
            name = slots.facts.name
            for signal, reason in self._problems.get(name, ()):
                yield Gap(self.source, name, signal, reason)
            yield from self._unlike_exporter(slots)
            if name in self.alone:
                yield Gap(self.source, name, "unreadable", f"{self.alone[name]}; it gets no new work")
            if name in self.used_apart:
                text = "pods use parts of its GPUs by KAI, and which GPUs these are is not known, as no one reservation"
                yield Gap(self.source, name, "sharing", f"{text} pod holds one for them; it gets no new work")
            if name in self._twice:
                other = self._twice[name]
                yield Gap(self.source, name, "uuid", f"it shows a GPU that {other} shows too; neither gets work")

    def _orphan_gaps(self) -> Iterable[Gap]:
        for node, asks in self._orphans.items():
            if count := sum(ask.any_gpu for ask in asks.values()):
                text = f"pods hold GPUs on it ({count}), and no node with GPUs has this name; no figure counts them"
                yield Gap(self.source, node, "nodes", text)

    def _unlike_exporter(self, slots: Slots) -> Iterable[Gap]:
        """The differences between the GPUs of a node and those of its exporter."""
        name, unseen = slots.facts.name, [gpu.uuid for gpu in slots.gpus if not gpu.seen]
        if not (unseen or self.exported or name in self.known):
            return
        has = {gpu.uuid for gpu in slots.gpus}
        if not unseen and self.exported and name not in self.exported and has:
            unseen = [gpu.uuid for gpu in slots.gpus]
        if unseen:
            text = f"an exporter shows {len(has) - len(unseen)} of its {len(has)} GPUs, and not {some(unseen)}"
            yield Gap(self.source, name, "gpus", f"{text}; what these do is not known")
        unlike = [gpu for gpu in slots.gpus if gpu.model and not slots.facts.is_model(gpu.model)]
        if unlike:
            text = f"an exporter shows {len(unlike)} of its {len(has)} GPUs as {shown(unlike[0].model)}, and its labels"
            text += f" say {slots.facts.model}: all of them count as that"
            yield Gap(self.source, name, "model", f"{text}; correct the labels, or use nodes with one GPU model each")
        surplus = sorted({gpu.uuid for gpu in self.known.get(name, ()) if gpu.seen} - has)
        if surplus:
            text = f"an exporter shows {len(has) + len(surplus)} GPUs, and it states {len(has)}"
            yield Gap(self.source, name, "gpus", f"{text}; {some(surplus)} does not count")


def some(names: Sequence[str]) -> str:
    """The first of these names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _codes(values: Iterable[str]) -> list[int]:
    """Values as codes, in the order of their first appearance."""
    code: dict[str, int] = {}
    return [code.setdefault(value, len(code)) for value in values]
