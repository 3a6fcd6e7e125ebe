"""Facts of one node for the inventory: model, GPUs, instances, topology, and reasons against new work.

GPU feature discovery's labels name the product and count the GPUs; `capacity` and `allocatable` are the reports of the
device plugin. If the two disagree the smaller one counts, and the node names the contradiction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, nan
from typing import Any

from autopilot.contract.annotations import EFFECT, MIG_GEOMETRY, SCRUBBED
from autopilot.contract.node_conditions import BAD, harmless
from autopilot.contract.notes import read_json, read_record, shown
from autopilot.contract.words_to_stay import stays
from autopilot.core.hardware.mig_profiles import find_gpu_model, find_profile, find_profile_name
from autopilot.core.model.objects import MIG_SCOPES, Sharing
from autopilot.core.model.snapshot import GPU_MILLI, Recut
from collectors.kubernetes import quantity
from collectors.kubernetes.asks import GPU, MIG, SHARED, SUFFIX, is_gpu
from collectors.kubernetes.node_sharing import sharing_of, turns
from collectors.kubernetes.notices import announced
from collectors.kubernetes.products import PRODUCT, first_label, model_by_labels, same_model
from collectors.kubernetes.sharing import NONE, Layer, layer_of, shared_by, unread
from collectors.kubernetes.wire import Node, condition, noted_s

BY_MIG_MANAGER = 1 << MIG_SCOPES.index("node")
MOST_GPUS = 72
MOST_INSTANCES = MOST_GPUS * 7
"""More GPUs than any machine has; a larger number is wrong."""

SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node-lifecycle": "spot",
}
"""Labels of nodes open to a reclaim by their cloud."""

POOL = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    "node.kubernetes.io/instance-type",
)
"""Labels of a group of equal nodes; the first present one counts."""

COUNT = (
    "nvidia.com/gpu.count",
    "cloud.google.com/gke-accelerator-count",
    "karpenter.k8s.aws/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-count",
)
"""Labels of feature discovery, GKE, Karpenter and the auto mode of EKS; the first present one counts."""

VIRTUAL = {"type": "virtual-kubelet", "liqo.io/type": "virtual-node"}
VIRTUAL_TAINTS = ("virtual-kubelet.io/provider", "virtual-node.liqo.io/not-allowed")
"""Labels and taints of nodes in place of a cloud service (Virtual Kubelet) or for another cluster (Liqo)."""

MAINTENANCE = ("aws-node-termination-handler/scheduled-maintenance", "node.kubernetes.io/out-of-service", "maintenance")
"""Taints of nodes without new work (the last one as the end of any key)."""

ISLAND, LEAF, BLOCK, ZONE = "island", "leaf", "block", "zone"
TOPOLOGY: Mapping[str, tuple[str, ...]] = {
    ISLAND: (
        "nvidia.com/gpu.clique",
        "accelerator.topograph.run/domain",
        "network.topology.nvidia.com/accelerator",
        "topology.k8s.aws/ultraserver-id",
        "ds.coreweave.com/nvlink.domain",
    ),
    LEAF: (
        "fabric.topograph.run/tier-0",
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/block",
        "topology.k8s.aws/network-node-layer-3",
        "cloud.google.com/gce-topology-subblock",
        "oci.oraclecloud.com/rdma.local_block_id",
        "backend.coreweave.cloud/leafgroup",
        "ib.coreweave.cloud/leafgroup",
    ),
    BLOCK: (
        "fabric.topograph.run/tier-1",
        "network.topology.nvidia.com/spine",
        "topology.k8s.aws/network-node-layer-2",
        "cloud.google.com/gce-topology-block",
        "oci.oraclecloud.com/rdma.network_block_id",
        "backend.coreweave.cloud/superpod",
        "ib.coreweave.cloud/superpod",
    ),
    ZONE: ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
}
"""Labels of each level; the first present one counts; the settings and Kueue's Topology come before them.

Topograph has renamed its labels twice: the switch next to the nodes was `block` up to 0.1, and `leaf` up to 0.5.
"""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node with GPUs. `problems` are (signal, reason)."""

    name: str
    uid: str
    model: str
    gpus: int  # physical
    cut: int  # of them in MIG mode
    usable: int  # whole GPUs offered by the device plugin, as GPUs
    replicas: int  # pods sharing one GPU; 1: none
    sharing: Sharing
    turns: bool  # see `node_sharing.turns`
    profiles: tuple[tuple[str, int], ...]  # MIG instances by profile
    geometry: tuple[tuple[tuple[str, int], ...] | None, ...]  # of each GPU (None: not in MIG mode); (): unknown
    instances_as_gpus: str  # profile of the instances offered as nvidia.com/gpu (strategy single); "": none
    pool: str
    island: str
    leaf: str
    block: str
    zone: str
    ready: bool
    cordoned: bool
    spot: bool
    reclaim_at_s: float
    recut: int
    by_claims: bool  # it offers GPUs by claims, and none as a resource
    barred: str  # reason against decisions: a layer shares its GPUs, and hands out their parts itself; "": none does
    gpu_mib: int  # memory of a GPU, as its layer counts it; 0: unknown
    uuids: tuple[str, ...]  # of its GPUs, if its layer names them
    mig_scopes: int  # 0: no MIG manager changes its geometry, it offers claims, or its owner protects it
    boot: str  # ID of its present boot; its uid if it states none
    cpu_milli: int
    memory_mib: int
    problems: tuple[tuple[str, str], ...] = ()

    def uuid(self, index: int) -> str:
        """The UUID of a GPU from the layer of its node, else one made of its node and number."""
        return self.uuids[index] if index < len(self.uuids) else f"{self.name}:gpu{index}"

    def is_model(self, driver: str) -> bool:
        """True if a GPU with this name by its driver is one of the model of the node, or if that is not known."""
        return same_model(self.model, driver, self.gpu_mib)

    def part_milli(self, memory_mib: int) -> int:
        """This part of a GPU's memory as thousandths of the GPU; 0 MiB: the whole GPU. 0 for unknown."""
        if not memory_mib:
            return GPU_MILLI
        return min(max(GPU_MILLI * memory_mib // self.gpu_mib, 1), GPU_MILLI) if self.gpu_mib else 0


def has_gpus(node: Node, layer: Layer = NONE) -> bool:
    """True for a node with GPUs, also while its device plugin is down. `layer`: the layer that shares them."""
    capacity = node.status.capacity or {}
    return any(map(is_gpu, capacity)) or bool(first_label(node, PRODUCT)) or bool(layer.name)


def virtual(node: Node) -> str:
    """The mark of a virtual node; "" for a machine, or if feature discovery has counted GPUs of a device plugin.

    A virtual node offers the capacity of the other side: a quota, and the GPUs of other nodes.
    """
    if quantity.whole(node.metadata.label(COUNT[0])):
        return ""
    taints = {each.key for each in node.spec.taints or ()}
    labels = (f"{key}={value}" for key, value in VIRTUAL.items() if node.metadata.label(key) == value)
    return next(labels, "") or next((key for key in VIRTUAL_TAINTS if key in taints), "")


def facts_of(
    node: Node,
    topology: Mapping[str, tuple[str, ...]] = TOPOLOGY,
    named: int = 0,
    reclaim_at_s: float = nan,
    layer: Layer | None = None,
    bad: Collection[tuple[str, str]] = BAD,
) -> NodeFacts:
    """The facts of a node with GPUs.

    `named`: the number of GPUs named by a source. `reclaim_at_s`: see `notices`. `layer`: the result of `layer_of`.
    `bad`: type and status of conditions barring new work.
    """
    problems: list[tuple[str, str]] = []
    layer = layer_of(node) if layer is None else layer
    product = node.metadata.label("nvidia.com/gpu.product")
    model, gpu_mib = model_by_labels(node, layer, problems)
    offered = _offered(node, problems)
    gpus, cut, usable, replicas, profiles, single = _counts(node, model, product, layer, offered, problems, named)
    sharing = Sharing.WHOLE
    if offered and not (layer.barred or single or profiles):
        sharing, unlike = sharing_of(node, offered, layer, replicas)
        problems += unlike
    by_claims = not offered and named > 0  # dynamic resource allocation
    gpus, cut, usable = (named, 0, named) if by_claims else (gpus, cut, usable)
    taints = node.spec.taints or ()
    ready = condition(node.status.conditions, "Ready")  # type: ignore[arg-type]
    recut, info = _recut(node), node.status.node_info
    problems += _told(node, layer, bad, recut)
    levels = {level: first_label(node, keys) for level, keys in topology.items()}
    allocatable = node.status.allocatable or {}
    cpu_milli = _stated(allocatable, "cpu", quantity.milli, problems)
    memory_mib = _stated(allocatable, "memory", quantity.mib, problems)
    return NodeFacts(
        name=node.metadata.name,
        uid=node.metadata.uid,
        model=model,
        gpus=gpus,
        cut=cut,
        usable=usable,
        replicas=replicas,
        sharing=sharing,
        turns=turns(node, layer, cut),
        profiles=profiles,
        geometry=_geometry(node, gpus, cut, profiles),
        instances_as_gpus=single,
        pool=first_label(node, POOL) or model,
        island=levels[ISLAND] or f"node {node.metadata.name}",
        leaf=levels[LEAF],
        block=levels[BLOCK],
        zone=levels[ZONE],
        ready=ready is not None and ready.status == "True",
        cordoned=node.spec.unschedulable
        or node.metadata.deletion_timestamp is not None
        or announced(node)
        or any(each.key.endswith(MAINTENANCE) for each in taints)
        or any(signal in {"allocatable", "condition", "sharing"} for signal, _ in problems),
        spot=any(node.metadata.label(key) == value for key, value in SPOT.items()),
        reclaim_at_s=reclaim_at_s,
        recut=recut,
        by_claims=by_claims,
        barred=layer.barred,
        gpu_mib=gpu_mib,
        uuids=layer.uuids,
        mig_scopes=0
        if by_claims
        or stays(node.metadata.annotations)
        or node.metadata.label("nvidia.com/mig.capable") != "true"
        or node.metadata.label("nvidia.com/mig.strategy") != "mixed"
        else BY_MIG_MANAGER,
        boot=str(info.boot_id if info is not None and info.boot_id else node.metadata.uid),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        problems=tuple(problems),
    )


def scrubbed_s(node: Node) -> float:
    """When its owner stated that all that is free of it is scrubbed; NaN: not stated, or no time."""
    at_s = noted_s(node.metadata.note(SCRUBBED))
    return nan if at_s is None else at_s


def _told(node: Node, layer: Layer, bad: Collection[tuple[str, str]], recut: int) -> Iterator[tuple[str, str]]:
    """Declarations of others on the node that bar or limit new work."""
    if layer.barred:
        yield "sharing", layer.barred
    if (text := node.metadata.note(SCRUBBED)) and noted_s(text) is None:
        yield "report", f"{SCRUBBED}={shown(text)} is no time in seconds since 1970; it does not count"
    for each in node.status.conditions or ():
        if (each.type, each.status) in bad:
            text, why = f"its condition {each.type} is {each.status} ({shown(each.reason)})", ""
            if (each.type, each.status) in BAD:
                why = harmless(each.type, each.reason, each.message)
            yield ("report", f"{text}; {why}") if why else ("condition", f"{text}; it gets no new work")
    if recut == Recut.FAILED:
        text = "its MIG manager states that a change of geometry failed; until it succeeds, GPUs in MIG mode get no"
        yield "nvidia.com/mig.config.state", f"{text} work"
    elif recut == Recut.CHANGING and not _followed(node):
        state = shown(node.metadata.label("nvidia.com/mig.config.state"))
        text = f"its MIG manager changes its geometry (state {state}); until that is done, GPUs in MIG mode get no"
        yield "nvidia.com/mig.config.state", f"{text} work; if it stays so, look at the pod of nvidia-mig-manager there"


def _stated(
    allocatable: Mapping[str, Any], name: str, read: Callable[[object], int | None], problems: list[tuple[str, str]]
) -> int:
    """CPU or memory of a node; -1: not stated, or unreadable."""
    if name not in allocatable:
        return -1
    value = read(allocatable[name])
    if value is None:
        text = f"{name} is {shown(allocatable[name])}, which is no quantity or out of bounds; it gets no work"
        problems.append(("allocatable", text))
    return -1 if value is None else value


def _offered(node: Node, problems: list[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Resource -> (capacity, allocatable) of GPUs and instances, without impossible numbers."""
    found = {}
    capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
    for name in {*capacity, *allocatable}:
        if not is_gpu(name):
            continue
        bound = MOST_INSTANCES if name.startswith(MIG) else MOST_GPUS * GPU_MILLI
        values = [quantity.bounded(each.get(name, "0"), bound) for each in (capacity, allocatable)]
        if None in values or any(value is not None and value != int(value) for value in values):
            stated = shown(allocatable.get(name, capacity.get(name)))
            problems.append(("allocatable", f"{name} is {stated}, which is no number of GPUs"))
            continue
        most, free = (int(value or 0) for value in values)
        if free > most:
            problems.append(("allocatable", f"{name}: allocatable is {free} and capacity is {most}; {most} counts"))
        elif free < most:
            text = f"the device plugin offers {free} of its {most} {name}; the others are unhealthy and get no work"
            problems.append(("devices", text))
        found[name] = (most, min(free, most))
    return found


def _counts(
    node: Node,
    model: str,
    product: str,
    layer: Layer,
    offered: dict[str, tuple[int, int]],
    problems: list[tuple[str, str]],
    named: int,
) -> tuple[int, int, int, int, tuple[tuple[str, int], ...], str]:
    """Physical GPUs, those in MIG mode, usable ones, pods per GPU, instances, and the profile of strategy single."""
    whole, free = (sum(pair) for pair in zip(offered.get(GPU, (0, 0)), offered.get(SHARED, (0, 0)), strict=True))
    replicas = max(quantity.whole(node.metadata.label("nvidia.com/gpu.replicas")), layer.clients, 1)
    if replicas > GPU_MILLI:
        problems.append(("allocatable", f"it states {replicas} pods for each GPU; at most {GPU_MILLI} count"))
        replicas = GPU_MILLI
    single = find_profile_name(layer.profile or product.rpartition("-MIG-")[2].removesuffix("-SHARED"))
    if single is not None:
        facts = find_gpu_model(model)
        profile = find_profile(facts, str(single)) if facts is not None else None
        instances = ceil(whole / replicas)
        cut = min(layer.gpus or ceil(instances / (profile.max_instances if profile is not None else 1)), MOST_GPUS)
        return cut, cut, 0, 1, ((str(single), ceil(free / replicas)),), str(single)
    profiles: dict[str, int] = {}
    for name, (_, instances) in offered.items():
        if name.startswith(MIG) and instances and (found := find_profile_name(name.removesuffix(SUFFIX))) is not None:
            profiles[str(found)] = profiles.get(str(found), 0) + ceil(instances / shared_by(node, name))
    labelled = layer.gpus or quantity.whole(first_label(node, COUNT))
    if 0 < labelled < named and whole == named * replicas:
        text = f"the label counts {labelled} GPUs, and its plugin and exporter {named}; that counts"
        problems.append(("nvidia.com/gpu.count", text))
        labelled = named
    shared = _shared(whole, labelled)
    if shared > replicas and not profiles:
        text = f"it states {replicas} pods for each GPU, and its plugin offers {whole} of {labelled} GPUs"
        problems.append(("nvidia.com/gpu.replicas", f"{text}; {shared} for each count"))
        replicas = shared
    plugged = whole // replicas
    gpus = labelled or plugged + (_least_gpus(model, profiles) if profiles else 0)
    if gpus > MOST_GPUS:
        problems.append(("allocatable", f"it states {gpus} GPUs, more than any node has; none of them counts"))
        return 0, 0, 0, 1, (), ""
    if labelled and plugged > labelled:
        problems.append(
            (
                "allocatable",
                f"capacity states {plugged} GPUs and the label nvidia.com/gpu.count {labelled}; that counts",
            )
        )
        plugged = labelled
    cut = gpus - plugged if profiles or _may_be_bare(node) else 0
    if profiles and cut <= 0:
        text = f"it offers MIG instances, and all its {gpus} GPUs as whole ones; the instances do not count"
        problems.append(("allocatable", text))
        profiles, cut = {}, 0
    if plugged + cut < gpus and not layer.barred:
        unlike = "; their MIG geometries differ, and MIG strategy single requires the same on all"
        why = unlike if product.endswith("-MIG-INVALID") else ""
        others = ", ".join(unread(node)[:3])
        why += f"; it offers {others} beside them, which is not read" if others else ""
        text = f"its labels count {gpus} GPUs and the device plugin has {plugged}; the others get no work{why}"
        problems.append(("devices", text))
    usable = min(free // replicas, gpus - cut) if whole or not layer.barred else gpus - cut
    return gpus, cut, usable, replicas, tuple(sorted(profiles.items())), ""


def _may_be_bare(node: Node) -> bool:
    """True if GPUs without a device in the plugin may be in MIG mode without an instance: a MIG manager was asked for a
    geometry.
    """
    if node.metadata.label("nvidia.com/mig.strategy") != "mixed":
        return False
    asked = node.metadata.label("nvidia.com/mig.config") not in {"", "all-disabled"}
    return asked or bool(node.metadata.note(MIG_GEOMETRY)) or _recut(node) != Recut.SETTLED


def _shared(whole: int, gpus: int) -> int:
    """Pods sharing each of these GPUs if the plugin offers more than one for each; 0 for an impossible number."""
    return whole // gpus if 0 < gpus < whole <= gpus * GPU_MILLI and whole % gpus == 0 else 0


def _least_gpus(model: str, profiles: Mapping[str, int]) -> int:
    """The fewest GPUs for these instances, by their slices."""
    facts = find_gpu_model(model)
    if facts is None:
        return 0
    slices = 0
    for name, count in profiles.items():
        profile = find_profile(facts, name)
        slices += count * (profile.memory_slices if profile is not None else facts.memory_slices)
    return ceil(slices / facts.memory_slices)


def _geometry(
    node: Node, gpus: int, cut: int, profiles: tuple[tuple[str, int], ...]
) -> tuple[tuple[tuple[str, int], ...] | None, ...]:
    """The autopilot's geometry of each GPU in a note on the node, if the node offers exactly that; else ()."""
    if not node.metadata.note(MIG_GEOMETRY):
        return ()
    try:
        found = read_json(node.metadata.note(MIG_GEOMETRY))
        each = tuple(None if part is None else tuple(sorted(part.items())) for part in found or ())
        sums = Counter[str]()
        for part in each:
            sums.update(dict(part or ()))
    except (ValueError, TypeError, AttributeError):
        return ()
    same = (
        tuple(sorted(sums.items())) == profiles and len(each) == gpus and sum(part is not None for part in each) == cut
    )
    return each if same and each else ()


def _recut(node: Node) -> int:
    state = node.metadata.label("nvidia.com/mig.config.state")
    if state == "failed":
        return Recut.FAILED
    return Recut.CHANGING if state in {"pending", "rebooting"} or _followed(node) else Recut.SETTLED


def _followed(node: Node) -> bool:
    """True while a change requested of the MIG manager is still followed.

    The manager reports success before the device plugin offers the new instances; until then the node offers none.
    """
    record = read_record(node.metadata.note(EFFECT)) if node.metadata.note(EFFECT) else {}
    return record.get("kind") == "recut" and record.get("step") == "set"
