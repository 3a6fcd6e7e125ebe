"""Inventory and work of a Kubernetes cluster (port `Collector`)."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from autopilot.contract.node_conditions import BAD
from autopilot.core.model.objects import SharingConfig, SubjectKind
from autopilot.core.model.records import Batch, Gap, Instruction, Listing
from autopilot.core.model.snapshot import Topology
from collectors.attribution import Sightings
from collectors.kubernetes import kinds, nodes, telemetry_join
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.constraints import Constraints, meets_labels
from collectors.kubernetes.devices import Hardware
from collectors.kubernetes.flops import owner_labels, reported_flops
from collectors.kubernetes.fronts import FRONTS
from collectors.kubernetes.gang_rows import Cluster as Surroundings
from collectors.kubernetes.gangs import Gang
from collectors.kubernetes.heartbeats import Training
from collectors.kubernetes.inventory import Nodes, some
from collectors.kubernetes.kai_wire import KaiQueue
from collectors.kubernetes.objects import ObjectsOfView
from collectors.kubernetes.offers import claims_for_resources
from collectors.kubernetes.queue_tree import QueueTree, kai_tree, namespace_tree
from collectors.kubernetes.queue_tree import check as check_limits
from collectors.kubernetes.service_work import Measuring
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.whole import clock_gaps, first_gaps, health_gaps, incomplete
from collectors.kubernetes.wire import Object, PriorityClass, ResourceQuota
from collectors.kubernetes.work import Gangs
from collectors.kueue import queues as kueue
from collectors.kueue.state import MULTIKUEUE
from collectors.kueue.wire import AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor
from collectors.kueue.wire import Topology as KueueTopology
from collectors.training import NOBODY

NAME = "kubernetes"
KAI_QUEUE = ("kai.scheduler/queue", "runai/queue")

_LEVELS = {
    nodes.ISLAND: Topology.ISLAND,
    nodes.LEAF: Topology.LEAF,
    nodes.BLOCK: Topology.BLOCK,
    nodes.ZONE: Topology.ZONE,
}


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of an operator. `topology`: label of a level (island, leaf, block, zone), before the usual ones.

    `acts`: the controller acts on this cluster. It then starts only the work waiting for it, and gangs have all members
    or none, unless a lever changes their width (`resizes`). `approvals`: owners approve by annotation on their work.
    `bad`: type and status of node conditions barring new work. `sharing`: configurations to which nodes may be turned.
    """

    topology: Mapping[str, str] = field(default_factory=dict)
    acts: bool = False
    resizes: bool = False
    approvals: bool = False
    bad: frozenset[tuple[str, str]] = BAD
    sharing: tuple[SharingConfig, ...] = ()


class KubernetesCollector:
    """The batch of a cluster from the caches kept up to date by `Cluster`. It never waits for the API server."""

    name = NAME

    def __init__(
        self,
        cluster: Cluster,
        options: Options | None = None,
        *,
        skew_s: Callable[[], float] = lambda: float("nan"),
        hardware: Hardware | None = None,
    ) -> None:
        """`skew_s`: lead of the server's clock over ours. `hardware`: a source that sees the GPUs themselves."""
        self._source, self._options, self._skew_s = cluster, options or Options(), skew_s
        self.hardware = hardware
        constraints = Constraints()
        self._around = Surroundings(constraints)
        self._nodes = Nodes(self.name, constraints, bad=self._options.bad, configs=self._options.sharing)
        self._around.hints = self._nodes.hints
        self._gangs = Gangs(self.name, self._nodes, self._around, unreadable=self._nodes.unreadable)
        self._kueue = kueue.Objects()
        self._topologies: dict[str, KueueTopology] = {}
        self._classes: dict[str, PriorityClass] = {}
        self._checks: dict[str, AdmissionCheck] = {}
        self._kai: dict[str, KaiQueue] = {}
        self._quotas: dict[str, ResourceQuota] = {}
        self._admission = kueue.Admission({}, {})
        self._tree: QueueTree | None = None
        self._namespaces: tuple[str, ...] = ()
        self._joined: Sightings | None = None
        self._training: Training | None = None
        self._told = NOBODY
        self._unlike: list[Gap] = []  # an exporter's rows about pods contradicted by the API
        self._claims = self._gangs.claims
        self._around.class_value = self._class_value
        self._around.acts, self._around.resizes = self._options.acts, self._options.resizes
        self._around.opt_outs.approvals = self._options.approvals
        self._around.queue, self._around.queue_stopped = self._queue_of, self._stopped
        self._gangs.queue_left = self._left
        self._around.level = self._level
        self._levels: dict[str, int] = {}

    @property
    def engine(self) -> str:
        """Engine of the queues: kueue, kai or namespaces; "" before the first list."""
        return self._tree.engine if self._tree is not None else ""

    @property
    def fair_sharing(self) -> str:
        """Evidence that Kueue shares fairly between its queues; "" if it does not, or is absent."""
        return kueue.fair_sharing(self._kueue) if self.engine == "kueue" else ""

    @property
    def objects(self) -> ObjectsOfView:
        """The API objects behind the subjects of decisions."""
        return ObjectsOfView(self._gangs, self._nodes)

    def approved(self) -> Mapping[str, str]:
        """By the uid of work: the annotation that approves actions on it alone. For the thread of `collect`."""
        return self._gangs.approved()

    @property
    def source(self) -> Cluster:
        """The lists read by the collector."""
        return self._source

    def collect(self, now_s: float) -> Batch:
        """Tables from the present content of the caches."""
        self._source.supervise()
        health = self._source.health()
        gaps = [*health_gaps(self.name, health, now_s), *clock_gaps(self.name, self._skew_s())]
        if not all(each.synced for each in health if each.kind.required):
            return Batch(self.name, now_s, gaps=tuple(gaps))
        with nullcontext() if self._tree is not None else _no_garbage():
            self._update(now_s)
            tree = self._tree_now()
            work = self._gangs.tables(tree, now_s)
        inventory = self._nodes.tables()  # a new requirement of a gang is a new label of the nodes
        gaps += first_gaps(
            self.name,
            [*self._nodes.gaps, *self._claims.gaps(self.name), *self._gangs.gaps(), *tree.gaps, *self._unlike],
        )
        reason = incomplete(health, self._skew_s())
        signed_s = min((each.sign_s for each in health if each.kind.required), default=now_s)
        gone = (tuple(self._nodes.deleted), tuple(self._gangs.deleted))
        self._nodes.deleted, self._gangs.deleted = [], []
        return Batch(
            self.name,
            min(signed_s, now_s),
            inventory=inventory,
            work=work,
            gaps=tuple(dict.fromkeys(gaps)),
            inventory_list=Listing(not reason, reason, deleted=gone[0]),
            work_list=Listing(not reason, reason, deleted=gone[1]),
        )

    def recall(self, under_way: Sequence[Instruction]) -> None:
        """Count the restarts of work onward from the counts of an earlier process (port `Recalling`)."""
        counts: dict[str, tuple[int, bool]] = {}
        for each in under_way:
            if each.subject.kind == SubjectKind.WORKLOAD:
                held = each.operation.stops or each.operation.continues  # it held GPUs at the decision
                counts[each.subject.uid] = max(counts.get(each.subject.uid, (0, False)), (each.subject.revision, held))
        self._gangs.recall(counts)

    def reported_flops(self, now_s: float) -> dict[str, float]:
        """Model FLOP/s by uid of work, if all pods of it report them now; other work is absent."""
        return reported_flops(self._gangs.gangs.values(), now_s)

    def owner_labels(self, keys: Sequence[str]) -> dict[str, str]:
        """JSON object of the labels named `keys`, by uid of work with one of them."""
        return owner_labels(self._gangs.gangs.values(), keys)

    def join(self, other: object) -> None:
        """Use another collector that sees GPUs and their pods (`hardware`), or metrics of training programs.

        The first one of each counts. A collector of service metrics gets their names and objectives.
        """
        if self.hardware is None and isinstance(other, Hardware):
            self.hardware = other
        if self._training is None and isinstance(other, Training):
            self._training = other
        if isinstance(other, Measuring):
            other.learn(*self._gangs.served.told())

    # --- changes --------------------------------------------------------------------------

    def _update(self, now_s: float) -> None:
        """Take in the changes of all kinds, each kind before its dependants."""
        gangs, drain = self._gangs, self._drain
        gangs.forget_constraints()
        self._update_topology(drain(kinds.TOPOLOGIES))
        nodes_changed = self._nodes.update(drain(kinds.NODES), now_s)
        queues_changed = self._update_queues(drain) or nodes_changed
        classes = drain(kinds.PRIORITY_CLASSES)
        _apply(self._classes, classes, PriorityClass)
        gangs.update_opt_outs(drain(kinds.NAMESPACES), now_s)
        gangs.update_budgets(drain(kinds.BUDGETS))
        gangs.served.update_autoscalers(drain(kinds.AUTOSCALERS))
        gangs.update_services(drain(kinds.DEPLOYMENTS), kinds.DEPLOYMENTS)
        gangs.update_services(drain(kinds.STATEFULSETS), kinds.STATEFULSETS)
        gangs.update_fronts(drain(each) for each in FRONTS)
        claims_changed = self._claims.update(drain)
        gangs.update_workloads(drain(kinds.WORKLOADS))
        gangs.update_jobs(drain(kinds.JOBS))
        gangs.update_pods(drain(kinds.PODS))
        if claims_changed:
            gangs.read_claims()
        gangs.leave_alone()
        around = self._around
        self._join(again=claims_changed)
        told = self._training.training(now_s) if self._training is not None else NOBODY
        if told is not self._told:
            self._told = told
            keys = {name: gangs.pods[uid].key for name, (uid, _) in gangs.held.holders().items()}
            gangs.dirty |= around.heartbeats.tell(told, keys)
        self._nodes.use_apart(gangs.held.lent.unjoined())
        inventory = self._nodes.tables()
        profile_code = {name: code for code, name in enumerate(inventory.names.profiles)}
        overbooked = gangs.held.overbooked()
        facts = _facts(around)
        around.models, around.profile_code, around.taints = self._nodes.models, profile_code, self._nodes.taints
        around.both_kinds = self._nodes.both_kinds
        around.claims_for_resources = claims_for_resources(self._claims.classes.values())
        if queues_changed:
            self._tree = None
        if queues_changed or classes.there or classes.gone or facts != _facts(around):
            gangs.touch_all()
        gangs.dirty |= (overbooked ^ around.overbooked) & gangs.gangs.keys()
        around.overbooked = overbooked

    def _drain(self, kind: kinds.Kind) -> Changes:
        """Changes of one kind; unreadable objects are noted."""
        return self._gangs.unreadable.take(kind, self._source.drain(kind))

    def _join(self, *, again: bool) -> None:
        """Take in a new answer of another source about GPUs. GPUs that it does not see are named by DRA."""
        found = self.hardware.sightings() if self.hardware is not None else None
        if not again and (found is None or found is self._joined):
            return
        self._joined = found = found or Sightings()
        pods = self._gangs.held.holders()
        models = {name: slots.facts.model for name, slots in self._nodes.slots.items()}
        claimed = self._claims.named(telemetry_join.instance_ids(found, self._claims.gpus, self._claims.held, pods))
        exported = telemetry_join.gpus_by_node(found, models, pods)
        cut = {node: gpus for node, gpus in claimed.gpus.items() if any(each.mig for each in gpus)}
        gpus = {**claimed.gpus, **exported, **cut}
        self._nodes.name_gpus(gpus, frozenset(exported))  # an exporter does not state the place of instances
        pinned, unlike = telemetry_join.pins(found, models.keys(), pods)
        unlike += telemetry_join.unlabelled(found, models.keys(), pods)
        for uid, node in pods.values():
            if uid in claimed.held:
                pinned.setdefault(node, {})[uid] = claimed.held[uid]
        moved = [slots.pin(pinned.get(name, {})) for name, slots in self._nodes.slots.items()]
        self._nodes.given += any(moved)
        names = {uid: "/".join(name) for name, (uid, _) in pods.items()}
        for slots in self._nodes.slots.values():
            for uid, seen, asked in slots.surplus():
                text = f"an exporter shows it on {seen} GPUs or instances, and it requests {asked}"
                unlike.append((names.get(uid, uid), f"{text}: the labels are not believed; check the relabelling"))
        for name, slots in self._nodes.slots.items():
            if slots.unconfirmed:
                which = some(sorted(names.get(uid, uid) for uid in slots.unconfirmed))
                unlike.append((name, f"an exporter names not all GPUs of {which} now; each keeps those it named last"))
        self._unlike = [Gap(self.name, name, "pods", reason) for name, reason in unlike]

    def _update_queues(self, drain: Callable[[kinds.Kind], Changes]) -> bool:
        """Take in queues of every engine; true if more than a counter of the status changed in one."""
        found: tuple[tuple[dict[str, Any], kinds.Kind, type[Object]], ...] = (
            (self._kueue.cluster_queues, kinds.CLUSTER_QUEUES, ClusterQueue),
            (self._kueue.cohorts, kinds.COHORTS, Cohort),
            (self._kueue.flavors, kinds.FLAVORS, ResourceFlavor),
            (self._kueue.local_queues, kinds.LOCAL_QUEUES, LocalQueue),
            (self._kai, kinds.KAI_QUEUES, KaiQueue),
            (self._quotas, kinds.QUOTAS, ResourceQuota),
        )
        changed = []
        for kept, kind, type_ in found:
            changes = drain(kind)
            changes.there = [each for each in changes.there if self._readable(kind, each)]
            changed.append(_apply(kept, changes, type_))
        _apply(self._checks, drain(kinds.CHECKS), AdmissionCheck)
        multikueue = frozenset(
            each.metadata.name for each in self._checks.values() if each.spec.controller_name == MULTIKUEUE
        )
        if multikueue != self._around.multikueue:
            self._around.multikueue = multikueue
            self._gangs.touch_all()
        if any(changed):
            self._admission = kueue.admission_of(self._kueue)
        return any(changed)

    def _readable(self, kind: kinds.Kind, found: Object) -> bool:
        """True if all numbers of a queue are numbers; otherwise it keeps its last good reading."""
        with self._gangs.unreadable.net(kind, found):
            kueue.check(found)
            check_limits(found)
            return True
        return False

    def _left(self, gang: Gang) -> str:
        """Why the queue of a gang takes no new decision: it, or a queue above it, is unreadable; "" otherwise."""
        alone, tree, row = self._gangs.alone_now, self._tree, self._queue_of(gang)
        if gang.workload is not None and alone.local_queues:
            text = alone.local_queues.get((gang.namespace, gang.workload.spec.queue_name), "")
            if text:
                return text
        if not alone.queues or tree is None:
            return ""
        names = {at: name for name, at in tree.rows.items()}
        for _ in range(len(names)):
            if row <= 0:
                return ""
            if names[row] in alone.queues:
                return alone.queues[names[row]]
            row = int(tree.table.parent[row])
        return ""

    def _update_topology(self, changes: Changes) -> None:
        """The labels of the levels: the settings, then Kueue's Topology, then the usual ones."""
        _apply(self._topologies, changes, KueueTopology)
        levels = {level: list(keys) for level, keys in nodes.TOPOLOGY.items()}
        self._levels = {}
        for each in sorted(self._topologies.values(), key=lambda each: each.metadata.name):
            keys = [level.node_label for level in each.spec.levels or () if level.node_label]
            if keys and keys[-1] == "kubernetes.io/hostname":
                keys = keys[:-1]
            for key, level in zip(reversed(keys), (nodes.LEAF, nodes.BLOCK, nodes.ZONE), strict=False):
                levels[level].insert(0, key)
        for level, key in self._options.topology.items():
            levels[level].insert(0, key)
        for level, labels in levels.items():
            for key in labels:
                self._levels.setdefault(key, int(_LEVELS[level]))
        self._nodes.set_topology({level: tuple(dict.fromkeys(labels)) for level, labels in levels.items()})

    # --- queues ---------------------------------------------------------------------------

    def _tree_now(self) -> QueueTree:
        """The queue tree of the cluster's engine; built again after changes of its objects."""
        plain, namespaces = not self._kueue.cluster_queues and not self._kai, self._namespaces
        if self._tree is None or (plain and self._gangs.dirty):  # else no gang came or went
            namespaces = tuple(sorted({gang.namespace for gang in self._gangs.gangs.values()}))
        if self._tree is not None and not (plain and namespaces != self._namespaces):
            return self._tree
        if self._kueue.cluster_queues:
            tree = kueue.build_tree(self._kueue, self._nodes.models, self._gpus_with, self.name)
        elif self._kai:
            tree = kai_tree(self._kai.values(), self._nodes.models, self._gpus_with({}))
        else:
            self._namespaces = namespaces
            tree = namespace_tree(namespaces, self._quotas.values(), self._nodes.models)
        self._tree = tree
        self._gangs.touch_all()
        return tree

    def _gpus_with(self, labels: Mapping[str, str]) -> Mapping[str, int]:
        """GPUs by model of the nodes with all these labels."""
        found: Counter[str] = Counter()
        for name, slots in self._nodes.slots.items():
            if meets_labels(self._nodes.objects[name], dict(labels)):
                found[slots.facts.model] += slots.facts.gpus
        return found

    def _queue_of(self, gang: Gang) -> int:
        """The row of the queue of a gang; -1 for a queue that does not exist."""
        tree = self._tree
        if tree is None:
            return 0
        if tree.engine == "kueue":
            if gang.workload is None:
                return 0  # not managed by Kueue: it holds GPUs beside all quotas
            admission = gang.workload.status.admission
            name = admission.cluster_queue if admission is not None else self._behind(gang)
            return tree.rows.get(name, -1) if name else -1
        if tree.engine == "kai":
            metas = [each.pod.metadata for each in gang.pods.values()][:1]
            metas += [gang.job.spec.template.metadata] if gang.job is not None else []
            name = next((value for meta in metas for key in KAI_QUEUE if (value := meta.label(key))), "")
            return tree.rows.get(name, -1) if name else 0
        return tree.rows.get(gang.namespace, 0)

    def _behind(self, gang: Gang) -> str:
        name = gang.workload.spec.queue_name if gang.workload is not None else ""
        return self._admission.behind.get((gang.namespace, name), "")

    def _stopped(self, gang: Gang) -> bool:
        """True if the queue of a gang admits nothing now."""
        if gang.workload is None:
            return False
        local = f"{gang.namespace}/{gang.workload.spec.queue_name}"
        return local in self._admission.stopped or self._behind(gang) in self._admission.stopped

    def _class_value(self, name: str) -> int | None:
        """The value of a priority class, "" for the global default; None: no such class."""
        for each in self._classes.values():
            if (each.metadata.name == name) if name else each.global_default:
                return each.value
        return None

    def _level(self, label: str) -> int:
        """The topology level of a node label."""
        return self._levels.get(label, int(Topology.NONE))


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Without the cyclic garbage collector: its passes over all new objects cost a fifth of the first sync."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _apply(kept: dict[str, Any], changes: Changes, kind: type[Object]) -> bool:
    """Take in changes by uid; true if more than a counter of the status changed."""
    changed = False
    for found in changes.gone:
        changed = kept.pop(found.metadata.uid, None) is not None or changed
    for found in changes.there:
        if not isinstance(found, kind):
            continue
        before = kept.get(found.metadata.uid)
        kept[found.metadata.uid] = found
        changed = changed or before is None or _without_version(before) != _without_version(found)
    return changed


def _without_version(found: object) -> tuple[object, ...]:
    return getattr(found, "spec", None), getattr(found, "status", None), getattr(found, "value", None)


def _facts(around: Surroundings) -> tuple[object, ...]:
    """Facts behind every row."""
    codes = around.models, around.profile_code
    return *codes, around.taints, around.both_kinds, around.claims_for_resources
