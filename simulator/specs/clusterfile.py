"""The specification of a simulated cluster: `7x8` (nodes x GPUs per node) or a YAML file.

pools:
  - name: train             # required, different in each pool
    nodes: 32               # required
    gpus_per_node: 8        # required
    gpu_model: H100-80GB    # required; see simulator/traces/gpu_models.py
    cpus: 192               # of one node; unknown is no constraint
    memory_mib: 2097152     # of one node; also "2048Gi"
    island: node            # NVLink island: node | pool | number of nodes
    nodes_per_leaf: 8       # 0: one leaf switch for the pool
    leaves_per_block: 4     # 0: one block for the pool
    zone: a
    spot: false             # may be reclaimed by the cloud after a notice
    absent: 0               # of its nodes; they come when an autoscaler is asked for them
    price_weight: 1.0       # of a GPU-second of this pool, against the others
    sharing: time-slicing-4 # its GPUs are shared by software, in four parts each; left out: whole
    sharing_offers: [time-slicing-4, mps-2]   # to which its nodes can be turned, beside whole; left out: never turned
    mig:                    # partitioned GPUs of each node; the others stay whole
      - gpus_per_node: 2
        geometry: {1g.10gb: 7}
    mig_scopes: [instance]  # what its engine changes together: instance, gpu, node; left out: geometries stay
queues:                     # optional; see simulator/specs/clusterqueues.py
  - {name: research, guarantee: {H100-80GB: 64}, limit: 128, weight: 2}
reservations:               # optional; see simulator/specs/advance_spec.py
  - {name: launch, queue: research, gpu_model: H100-80GB, gpus: 32, from: 9h, grace: 30m}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopilot.core.hardware import mig
from autopilot.core.model.errors import InputError, shown, unknown_name
from autopilot.core.model.objects import MIG_SCOPES, Sharing, SharingConfig
from autopilot.core.model.units import counted, parse_cluster_shape, parse_memory_mib
from simulator.specs.advance_spec import AdvanceSpec, parse_advance
from simulator.specs.clusterqueues import QueueSpec, parse_queues
from simulator.specs.fields import Fields, load_yaml
from simulator.traces.checks import Capacity
from simulator.traces.gpu_models import KNOWN_GPU_MODELS, MIG_MODEL_NAMES, model_for_label, models_like

MOST_NODES = 200_000
MOST_GPUS_PER_NODE = 72
MOST_POOLS = 10_000
LONGEST_PATH = 4096
MOST_SHARES = 48
"""The most clients of one MPS server (Volta and later)."""
SHARING_KINDS = {"time-slicing": Sharing.TIME_SLICING, "mps": Sharing.MPS}
UNSHARED = SharingConfig("whole", Sharing.WHOLE, 1)
SHARING_FIX = f"write time-slicing-N or mps-N with N shares of a GPU, from 2 to {MOST_SHARES}, in a list for the offers"
SHAPE_MODEL = "A100-80GB"
"""The GPU model of a cluster given as `7x8`."""


@dataclass(frozen=True, slots=True)
class MigSpec:
    """`gpus` GPUs of each node are partitioned into `placements` (profile, first memory slice)."""

    gpus: int
    placements: tuple[mig.Placement, ...]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Equal nodes. `cpus` and `memory_mib` are None where not stated, and then no constraint.

    Nodes are numbered through the pool; `nodes_per_island`, `nodes_per_leaf` and `nodes_per_block` neighbours share an
    NVLink island, a leaf switch, a block. `gpu_memory_gb` is None where unknown.
    """

    name: str
    nodes: int
    gpus_per_node: int
    gpu_model: str
    gpu_memory_gb: int | None
    cpus: int | None
    memory_mib: int | None
    nodes_per_island: int
    nodes_per_leaf: int
    leaves_per_block: int
    zone: str
    spot: bool
    mig: tuple[MigSpec, ...]
    price_weight: float
    absent: int = 0
    sharing: SharingConfig | None = None
    sharing_offers: tuple[SharingConfig, ...] = ()
    mig_scopes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.nodes * self.gpus_per_node

    @property
    def nodes_per_block(self) -> int:
        """Nodes under one block."""
        return self.nodes_per_leaf * self.leaves_per_block


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A whole cluster; `source` is its text or file."""

    source: str
    pools: tuple[PoolSpec, ...]
    queues: tuple[QueueSpec, ...]
    advance: tuple[AdvanceSpec, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of all pools."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def gpus_by_model(self) -> dict[str, int]:
        """GPUs by model, in the order of the pools."""
        count: dict[str, int] = {}
        for pool in self.pools:
            count[pool.gpu_model] = count.get(pool.gpu_model, 0) + pool.gpus
        return count

    @property
    def capacity(self) -> Capacity:
        """What `read_jobs` needs to recognize jobs that can never run here."""
        return Capacity(self.gpus, self.gpus_by_model, self.limit_by_queue, self.limit_by_queue_and_model)

    @property
    def limit_by_queue(self) -> dict[str, int]:
        """The most GPUs that each queue may hold, by its own limit and those of its ancestors; queues without a limit
        are omitted.
        """
        limits: dict[str, int] = {}
        for queue in self.queues:  # parents come first
            own = [each for each in (queue.limit, limits.get(queue.parent)) if each is not None]
            if own:
                limits[queue.name] = min(own)
        return limits

    @property
    def limit_by_queue_and_model(self) -> dict[str, dict[str, int]]:
        """The same for single GPU models; models and queues without such a limit are omitted."""
        limits: dict[str, dict[str, int]] = {}
        for queue in self.queues:
            above = limits.get(queue.parent, {})
            least = {
                model: min(each[model] for each in (queue.limit_by_model, above) if model in each)
                for model in {**above, **queue.limit_by_model}
            }
            if least:
                limits[queue.name] = least
        return limits


def parse_cluster(text: str | Path) -> ClusterSpec:
    """A cluster from its shape (`7x8`) or from a YAML file.

    Raises `InputError` naming the file, the field, its value and what is allowed.
    """
    words = str(text).strip()
    head, cross, tail = words.lower().partition("x")
    if cross and head.strip().isdigit() and tail.strip().isdigit():
        return _from_shape(words)
    path = Path(text)
    if len(words) > LONGEST_PATH or not path.exists():
        raise InputError(f"cluster {shown(words)}: neither a shape such as 7x8 (nodes x GPUs per node) nor a file")
    return read_cluster(load_yaml(path, "the cluster file"), str(path))


def read_cluster(root: Fields, source: str) -> ClusterSpec:
    """A cluster from the fields `pools`, `queues` and `reservations`. Raises `InputError` as `parse_cluster`."""
    pools = tuple(_pool(fields) for fields in root.each("pools"))
    if not pools:
        raise root.fail("pools", "write at least one pool with name, nodes, gpus_per_node and gpu_model")
    _check_pools(pools, root)
    bare = ClusterSpec(source, pools, ())
    queues = parse_queues(root, bare.gpus_by_model)
    spec = ClusterSpec(source, pools, queues, parse_advance(root, bare.gpus_by_model, queues))
    root.done()
    return spec


def shape_cluster(nodes: int, gpus_per_node: int, gpu_model: str = SHAPE_MODEL) -> ClusterSpec:
    """One pool of equal nodes, as in `7x8`: every node an island, all under one leaf."""
    pool = PoolSpec(
        name="default",
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu_model=gpu_model,
        gpu_memory_gb=KNOWN_GPU_MODELS[gpu_model],
        cpus=None,
        memory_mib=None,
        nodes_per_island=1,
        nodes_per_leaf=nodes,
        leaves_per_block=1,
        zone="default",
        spot=False,
        mig=(),
        price_weight=1.0,
    )
    return ClusterSpec(f"{nodes}x{gpus_per_node}", (pool,), ())


def _from_shape(words: str) -> ClusterSpec:
    shape = parse_cluster_shape(words.lower().replace(" ", ""))
    nodes, gpus = shape if shape is not None else (MOST_NODES + 1, MOST_GPUS_PER_NODE + 1)
    allowed = f"1 to {MOST_NODES:,} nodes of 1 to {MOST_GPUS_PER_NODE} GPUs"
    if not 1 <= nodes <= MOST_NODES or not 1 <= gpus <= MOST_GPUS_PER_NODE:
        raise InputError(f"cluster {shown(words)} is not allowed; write {allowed}")
    return shape_cluster(nodes, gpus)


def _pool(fields: Fields) -> PoolSpec:
    name = fields.text("name")
    nodes = fields.whole("nodes", 1, MOST_NODES)
    gpus_per_node = fields.whole("gpus_per_node", 1, MOST_GPUS_PER_NODE)
    label = fields.text("gpu_model")
    model = model_for_label(label)
    if model is None:
        alike = [name for name in models_like(label, KNOWN_GPU_MODELS) if name in KNOWN_GPU_MODELS]
        if alike:
            raise fields.fail("gpu_model", f"it may be {', '.join(alike)}; name one of them")
        raise fields.unknown("gpu_model", "it is not a known GPU model", KNOWN_GPU_MODELS)
    cpus, memory = fields.get("cpus"), fields.get("memory_mib")
    if isinstance(memory, str):
        fields.content["memory_mib"] = parse_memory_mib(memory, fields.where("memory_mib"))
    nodes_per_leaf = fields.whole("nodes_per_leaf", 0, MOST_NODES, default=0) or nodes
    leaves = -(-nodes // nodes_per_leaf)
    pool = PoolSpec(
        name=name,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu_model=model,
        gpu_memory_gb=KNOWN_GPU_MODELS[model],
        cpus=None if cpus is None else fields.whole("cpus", 1, 100_000),
        memory_mib=None if memory is None else fields.whole("memory_mib", 1, 2**40),
        nodes_per_island=_island(fields, nodes),
        nodes_per_leaf=nodes_per_leaf,
        leaves_per_block=fields.whole("leaves_per_block", 0, MOST_NODES, default=0) or leaves,
        zone=fields.text("zone", default="default"),
        spot=fields.flag("spot", default=False),
        mig=_mig(fields, model, gpus_per_node),
        price_weight=fields.number("price_weight", 0.0, 1e6, default=1.0, above=True),
        absent=fields.whole("absent", 0, nodes - 1, default=0),
        sharing=_sharing(fields, "sharing", fields.text("sharing")) if fields.get("sharing") is not None else None,
        sharing_offers=_offers(fields),
        mig_scopes=_mig_scopes(fields),
    )
    fields.done()
    if pool.mig and (pool.sharing is not None or pool.sharing_offers):
        raise fields.fail("sharing" if pool.sharing else "sharing_offers", "leave it out: the pool has MIG instances")
    return pool


def _offers(fields: Fields) -> tuple[SharingConfig, ...]:
    """The configurations of sharing to which the nodes of a pool can be turned: whole, and those listed."""
    words = fields.get("sharing_offers")
    if words is None:
        return ()
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise fields.fail("sharing_offers", SHARING_FIX)
    found = [_sharing(fields, "sharing_offers", word) for word in dict.fromkeys(words) if word.strip() != UNSHARED.key]
    return (UNSHARED, *found)


def _sharing(fields: Fields, field: str, word: str) -> SharingConfig:
    kind, _, count = word.strip().rpartition("-")
    if kind not in SHARING_KINDS or not count.isdigit() or not 2 <= int(count) <= MOST_SHARES:
        raise fields.fail(field, SHARING_FIX)
    return SharingConfig(word.strip(), SHARING_KINDS[kind], int(count), named=True)


def _mig_scopes(fields: Fields) -> tuple[str, ...]:
    value = fields.get("mig_scopes")
    if value is None:
        return ()
    scopes = value if isinstance(value, list) else [value]
    if not all(each in MIG_SCOPES for each in scopes):
        raise fields.fail("mig_scopes", f"write a list of {', '.join(MIG_SCOPES)}")
    return tuple(scopes)


def _island(fields: Fields, nodes: int) -> int:
    value = fields.get("island")
    if value is None or value == "node":
        return 1
    if value == "pool":
        return nodes
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= nodes:
        raise fields.fail("island", f"write node, pool or a number of nodes from 1 to {nodes:,}")
    return value


def _mig(fields: Fields, model: str, gpus_per_node: int) -> tuple[MigSpec, ...]:
    if isinstance(fields.content.get("mig"), Mapping):
        fields.content["mig"] = [fields.content["mig"]]
    specs = []
    for item in fields.each("mig"):
        if model not in MIG_MODEL_NAMES:
            raise InputError(f"{fields.where('mig')}: {model} has no MIG; leave the field out")
        gpus = item.whole("gpus_per_node", 1, gpus_per_node, default=gpus_per_node)
        placements = _geometry(item, model)
        item.done()
        specs.append(MigSpec(gpus, placements))
    if sum(spec.gpus for spec in specs) > gpus_per_node:
        cut = sum(spec.gpus for spec in specs)
        raise InputError(
            f"{fields.where('mig')}: {counted(cut, 'GPU of each node is|GPUs of each node are')} to be partitioned, "
            f"but a node has {gpus_per_node}"
        )
    return tuple(specs)


def _geometry(item: Fields, model: str) -> tuple[mig.Placement, ...]:
    geometry = item.get("geometry")
    if not isinstance(geometry, Mapping) or not geometry:
        raise item.fail("geometry", "write MIG profiles and how many of each, for example {1g.10gb: 7}")
    inner = Fields(geometry, item.source, f"{item.path}.geometry")
    wanted: list[str] = []
    for name in inner.content:
        profile = mig.find_profile(model, name)
        if profile is None:
            names = [each.name for each in mig.gpu_model(model).profiles]
            raise inner.fail(name, f"{model} has no such profile; {unknown_name(name, names)}")
        wanted += [profile.name] * inner.whole(name, 1, 16)
    placements = mig.fits(model, (), wanted)
    if placements is None:
        raise item.fail("geometry", f"these instances do not fit together on one {model}")
    return placements


def _check_pools(pools: tuple[PoolSpec, ...], root: Fields) -> None:
    seen: dict[str, int] = {}
    for index, pool in enumerate(pools):
        if pool.name in seen:
            raise InputError(
                f"{root.where(f'pools[{index}].name')}: {pool.name!r} is also the name of "
                f"pools[{seen[pool.name]}]; pools need different names"
            )
        seen[pool.name] = index
    nodes = sum(pool.nodes for pool in pools)
    if nodes > MOST_NODES or len(pools) > MOST_POOLS:
        raise InputError(
            f"{root.where('pools')}: {len(pools):,} pools with {nodes:,} nodes; "
            f"at most {MOST_POOLS:,} and {MOST_NODES:,} are simulated"
        )


def cluster_yaml(pools: tuple[PoolSpec, ...], comment: str) -> str:
    """The text of a cluster file with these pools, with `comment` at the top."""
    import yaml

    entries = []
    for pool in pools:
        entry: dict[str, Any] = {
            "name": pool.name,
            "nodes": pool.nodes,
            "gpus_per_node": pool.gpus_per_node,
            "gpu_model": pool.gpu_model,
            "cpus": pool.cpus,
            "memory_mib": pool.memory_mib,
        }
        entries.append({key: value for key, value in entry.items() if value is not None})
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + yaml.safe_dump({"pools": entries}, sort_keys=False)
