"""Small clusters and jobs for the tests of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopilot.core.model.records import Inventory
from simulator.specs.clusterfile import ClusterSpec, PoolSpec, shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.world.cluster import Cluster
from simulator.world.physics import IDEAL, Physics
from simulator.world.work import Jobs, Shape


def inventory(nodes: int = 2, gpus: int = 8) -> Inventory:
    """Equal nodes of one pool."""
    return build_inventory(shape_cluster(nodes, gpus))


def pools(*parts: PoolSpec) -> Inventory:
    """Several pools."""
    return build_inventory(ClusterSpec("test", parts, ()))


def pool(name: str = "default", nodes: int = 1, gpus: int = 2, model: str = "A100-80GB", **more: Any) -> PoolSpec:
    """One pool; `more` are fields of PoolSpec."""
    values: dict[str, Any] = {
        "gpu_memory_gb": 80,
        "cpus": None,
        "memory_mib": None,
        "nodes_per_island": 1,
        "nodes_per_leaf": nodes,
        "leaves_per_block": 1,
        "zone": "a",
        "spot": False,
        "mig": (),
        "price_weight": 1.0,
    }
    return PoolSpec(name=name, nodes=nodes, gpus_per_node=gpus, gpu_model=model, **(values | more))


def gang(gpus: int, per_member: int = 8, **more: Any) -> Shape:
    """Whole GPUs."""
    return Shape(gpus=gpus, per_member=min(gpus, per_member), min_gpus=more.pop("min_gpus", gpus), **more)


def make_jobs(rows: Sequence[tuple[float, float, int]], per_member: int = 8, tenant: str = "t", **more: Any) -> Jobs:
    """Jobs of (submit_s, duration_s, gpus)."""
    jobs = Jobs()
    for number, (submit_s, duration_s, gpus) in enumerate(rows):
        jobs.add(f"job-{number}", tenant, gang(gpus, per_member), submit_s, duration_s, **more)
    return jobs


def one_job(shape: Shape, duration_s: float = 1000.0, **more: Any) -> Jobs:
    """A single job at time 0."""
    jobs = Jobs()
    jobs.add("job-0", "t", shape, 0.0, duration_s, **more)
    return jobs


def cluster_of(jobs: Jobs, hardware: Inventory | None = None, physics: Physics = IDEAL, **more: Any) -> Cluster:
    """A cluster on which all jobs are submitted."""
    cluster = Cluster(hardware or inventory(), jobs, physics, **more)
    for job in range(len(jobs)):
        cluster.submit(job, 0.0)
    return cluster
