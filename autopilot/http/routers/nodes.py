"""The map of nodes, GPUs and MIG instances, and one node in detail."""

from __future__ import annotations

from math import isnan
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Path, Response

from autopilot.core.hardware.dcgm import profile_slices
from autopilot.core.intake.signals import ACTIVITY_WINDOW_S
from autopilot.core.intake.usage.parts import GPU_UNITS, parts_of, plausible
from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import F64, GPU_MILLI, Bools, ClusterSnapshot, Recut
from autopilot.explain.neighbours import SHARING_WORDS
from autopilot.http.answers import stated
from autopilot.http.auth import Viewer
from autopilot.http.desk import Asked
from autopilot.http.documents import json_answer
from autopilot.http.known import aged, seen_or_blank
from autopilot.http.view_answers import NodesView, NodeView
from autopilot.service.published import Published

router = APIRouter(prefix="/api/v1", tags=["nodes"])


@router.get("/nodes", responses=stated(NodesView))
def nodes(desk: Asked, _caller: Viewer) -> Response:
    """All nodes and GPUs in columns, and the MIG instances in rows [gpu, profile, first slice, held]."""
    return json_answer(aged(desk.documents.body("nodes", desk.latest(), _nodes), desk.publisher.known))


@router.get("/nodes/{node_id:path}", responses=stated(NodeView))
def node(desk: Asked, _caller: Viewer, node_id: Annotated[str, Path(max_length=500)]) -> Response:
    """One node with its GPUs, what runs on each, and its instances."""
    latest = desk.seen()
    found = np.flatnonzero(latest.observation.snapshot.nodes.id == node_id)
    if not len(found):
        raise HTTPException(404, f"{node_id}: no such node now")
    return json_answer(_node(latest, int(found[0])))


def activity_of(snapshot: ClusterSnapshot) -> F64:
    """SM activity of each GPU, then of each instance, over the short window. NaN: not measured. Shape [entities]."""
    table, count = snapshot.telemetry, len(snapshot.gpus.uuid) + len(snapshot.instances.id)
    out = np.full(count, np.nan)
    if "sm_active_ratio" in table.signals and ACTIVITY_WINDOW_S in table.windows_s:
        row = table.means("sm_active_ratio")[table.windows_s.index(ACTIVITY_WINDOW_S)]
        known = plausible("sm_active_ratio", row)
        size = min(count, len(row))
        out[:size] = np.where(known, np.minimum(row, 1.0), np.nan)[:size]
    return out


def held_milli(snapshot: ClusterSnapshot) -> tuple[F64, Bools]:
    """Thousandths of each GPU held by workloads, counted like the figures of the fleet; and the held instances."""
    parts, held = parts_of(snapshot), snapshot.placements.instance
    gpus: F64 = np.rint(np.bincount(parts.gpu, parts.units, len(snapshot.gpus.uuid)) * (GPU_MILLI / GPU_UNITS))
    taken = np.zeros(len(snapshot.instances.id), np.bool_)
    taken[held[held >= 0]] = True
    return gpus, taken


def _nodes(latest: Published) -> dict[str, Any]:
    snapshot = latest.observation.snapshot
    return seen_or_blank(latest, NodesView, lambda: _map(snapshot), window_s=ACTIVITY_WINDOW_S)


def _map(snapshot: ClusterSnapshot) -> dict[str, Any]:
    table, gpus, cut = snapshot.nodes, snapshot.gpus, snapshot.instances
    held, taken = held_milli(snapshot)
    percent = np.rint(100.0 * activity_of(snapshot))
    slices = [profile_slices(name) for name in snapshot.names.profiles]
    return {
        "pools": snapshot.names.pools,
        "models": snapshot.names.gpu_models,
        "profiles": [
            {"name": name, "slices": count} for name, count in zip(snapshot.names.profiles, slices, strict=True)
        ],
        "nodes": {
            "id": table.id.tolist(),
            "pool": table.pool.tolist(),
            "model": table.gpu_model.tolist(),
            "gpus": table.gpus.tolist(),
            "ready": table.ready.tolist(),
            "cordoned": table.cordoned.tolist(),
            "spot": table.spot.tolist(),
            "reclaimed": (~np.isnan(table.reclaim_at_s)).tolist(),
        },
        "gpus": {  # by node, in the order of `nodes`
            "held_milli": held.astype(int).tolist(),
            "activity_percent": [None if isnan(value) else int(value) for value in percent[: len(gpus.uuid)].tolist()],
            "healthy": gpus.healthy.astype(int).tolist(),
            "mig": gpus.mig.astype(int).tolist(),
            "recut": gpus.recut.tolist(),
        },
        "instances": np.stack([cut.gpu, cut.profile, cut.start, taken.astype(np.int32)], axis=1).tolist(),
    }


def _why_quarantined(latest: Published, uuid: str) -> str | None:
    """Reason for the quarantine of a GPU after a change of its MIG geometry; None without one."""
    record = latest.memory.geometry.recuts.get(uuid)
    return record.reason if record is not None and record.state == "quarantined" else None


def _node(latest: Published, row: int) -> dict[str, Any]:
    snapshot = latest.observation.snapshot
    table, gpus, cut, held = snapshot.nodes, snapshot.gpus, snapshot.instances, snapshot.placements
    names, activity, count = snapshot.names, activity_of(snapshot), len(snapshot.gpus.uuid)
    work = snapshot.workloads
    out = []
    for gpu in np.flatnonzero(gpus.node == row).tolist():
        holders = np.flatnonzero(held.gpu == gpu).tolist()
        out.append(
            {
                "uuid": str(gpus.uuid[gpu]),
                "index": int(gpus.index[gpu]),
                "healthy": bool(gpus.healthy[gpu]),
                "xid": int(gpus.xid[gpu]) if gpus.xid[gpu] > 0 else None,
                "mig": bool(gpus.mig[gpu]),
                "recut": Recut(int(gpus.recut[gpu])).name.lower(),
                "quarantined": _why_quarantined(latest, str(gpus.uuid[gpu])),
                "activity_ratio": activity[gpu],
                "workloads": [
                    {
                        "id": str(work.id[held.workload[place]]),
                        "tenant": names.tenants[work.tenant[held.workload[place]]]
                        if work.tenant[held.workload[place]] >= 0
                        else "",
                        "gpu_share": int(held.milli[place]) / GPU_MILLI,
                        "instance": str(cut.id[held.instance[place]]) if held.instance[place] >= 0 else None,
                    }
                    for place in holders
                ],
                "instances": [
                    {
                        "id": str(cut.id[each]),
                        "profile": names.profiles[cut.profile[each]] if cut.profile[each] >= 0 else "",
                        "start": int(cut.start[each]),
                        "activity_ratio": activity[count + each],
                    }
                    for each in np.flatnonzero(cut.gpu == gpu).tolist()
                ],
            }
        )
    return {
        "id": str(table.id[row]),
        "pool": names.pools[table.pool[row]],
        "model": names.gpu_models[table.gpu_model[row]],
        "ready": bool(table.ready[row]),
        "cordoned": bool(table.cordoned[row]),
        "spot": bool(table.spot[row]),
        "reclaim_at_s": float(table.reclaim_at_s[row]),
        "sharing": SHARING_WORDS[Sharing(int(table.sharing[row]))],
        "replicas": int(table.replicas[row]),
        "gpus": out,
    }
