"""Alibaba cluster-trace-gpu-v2023 ("openb"): pods as published (CSV) or in our columns, and their nodes.

A node list beside the pods (`openb_node_list_all_node.csv`, `openb_node_list_gpu_node.csv` or
`nodes.parquet`) becomes a cluster file beside the jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from simulator.specs.clusterfile import PoolSpec, cluster_yaml
from simulator.traces.gpu_models import KNOWN_GPU_MODELS, model_for_label
from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout
from simulator.traces.table_files import Progress, number_column, require_columns

POD_COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
NODE_FILES = ("openb_node_list_gpu_node.csv", "openb_node_list_all_node.csv", "nodes.parquet")


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Read the pods; the trace names no tenants, so all of them belong to the tenant `openb`."""
    del options
    progress("reading the pods", 0.0)
    frame = read_layout(path)
    if {"job_id", "submit_s", "num_gpu", "gpu_milli"} <= set(frame.columns):
        jobs = frame.drop(columns=[name for name in ("gpu_spec", "cpu_milli") if name in frame.columns])
        jobs["gpu_type"], jobs["cpus"] = frame["gpu_spec"], number_column(frame, "cpu_milli", path) / 1000
    elif set(POD_COLUMNS) <= set(frame.columns):
        jobs = _from_publisher(frame, path)
    else:
        raise layout_error(path, "openb", (", ".join(POD_COLUMNS), "job_id, submit_s, num_gpu, gpu_milli, ..."), frame)
    jobs["tenant"] = "openb"
    num_gpu = number_column(frame, "num_gpu", path)
    jobs["gpus"] = num_gpu
    jobs["gpu_milli"] = number_column(frame, "gpu_milli", path).where(num_gpu == 1)
    imported = Imported(jobs, len(frame), assumed={"tenant": len(jobs)})
    if not number_column(jobs, "submit_s", path).notna().any():
        raise InputError(f"{path}: no pod has a creation time; this mix of openb has no arrivals to replay")
    waiting = int(number_column(jobs, "start_s", path).isna().sum())
    if waiting:
        imported.notes.append(f"{waiting:,} pods were never scheduled; their duration runs from creation to deletion")
    imported.cluster_yaml = _cluster(path.parent, imported.notes)
    return imported


def _from_publisher(frame: Any, path: Path) -> Any:
    import pandas as pd

    created = number_column(frame, "creation_time", path)
    deleted = number_column(frame, "deletion_time", path)
    scheduled = (
        number_column(frame, "scheduled_time", path)
        if "scheduled_time" in frame
        else pd.Series(float("nan"), frame.index)
    )
    zero = created.min()
    return pd.DataFrame(
        {
            "job_id": frame["name"],
            "submit_s": created - zero,
            "start_s": scheduled - zero,
            "end_s": deleted - zero,
            "duration_s": deleted - scheduled.fillna(created),
            "nodes": 1,
            "status": frame["pod_phase"].str.lower() if "pod_phase" in frame else None,
            "kind": frame.get("qos"),
            "gpu_type": frame.get("gpu_spec"),
            "cpus": number_column(frame, "cpu_milli", path) / 1000 if "cpu_milli" in frame else None,
            "memory_mib": number_column(frame, "memory_mib", path) if "memory_mib" in frame else None,
        }
    )


def _cluster(folder: Path, notes: list[str]) -> str | None:
    path = next((folder / name for name in NODE_FILES if (folder / name).exists()), None)
    if path is None:
        notes.append(f"no node list beside the pods ({', '.join(NODE_FILES)}), so no cluster file is written")
        return None
    nodes = read_layout(path).rename(columns={"gpu": "gpus", "model": "gpu_model", "sn": "node_id"})
    require_columns(nodes, ("gpus", "gpu_model", "cpu_milli", "memory_mib"), path, "a node list")
    for name in ("gpus", "cpu_milli", "memory_mib"):
        nodes[name] = number_column(nodes, name, path).astype("int64")
    with_gpus = nodes[nodes["gpus"] > 0]
    shapes = with_gpus.groupby(["gpu_model", "gpus", "cpu_milli", "memory_mib"]).size().reset_index(name="nodes")
    pools = tuple(_pool(shape, path) for shape in shapes.to_dict("records"))
    notes.append(f"{len(nodes) - len(with_gpus):,} nodes without GPUs are left out of the cluster file")
    head = (
        "Alibaba cluster-trace-gpu-v2023 (openb): nodes with GPUs, grouped by equal shape.\nSee docs/data-sources.md."
    )
    return cluster_yaml(pools, head)


def _pool(shape: dict[Any, Any], path: Path) -> PoolSpec:
    """One pool of equal nodes; properties outside the trace (islands, switches, prices) stay plain."""
    label, gpus, cpus, memory_mib = (
        shape["gpu_model"],
        shape["gpus"],
        shape["cpu_milli"] // 1000,
        shape["memory_mib"],
    )
    model = model_for_label(str(label))
    if model is None:
        raise InputError(
            f"{path}: column gpu_model: {label!r} is no known GPU model; there are {', '.join(KNOWN_GPU_MODELS)}"
        )
    return PoolSpec(
        name=f"{label}x{gpus}-{cpus}cpu-{memory_mib // 1024}g".lower(),
        nodes=int(shape["nodes"]),
        gpus_per_node=int(gpus),
        gpu_model=model,
        gpu_memory_gb=KNOWN_GPU_MODELS[model],
        cpus=int(cpus),
        memory_mib=int(memory_mib),
        nodes_per_island=1,
        nodes_per_leaf=int(shape["nodes"]),
        leaves_per_block=1,
        zone="default",
        spot=False,
        mig=(),
        price_weight=1.0,
    )
