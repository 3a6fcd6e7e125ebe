"""A recorded journal as the input of a comparison: a job file and a cluster file, made from its ticks.

The run time of a job is its progress and its last stay; unended work counts for the time of its presence. Replicas of
services become jobs with the same stays on GPUs: their requests are not in the journal.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from autopilot.contract import stated_sharing
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Decision
from autopilot.core.model.snapshot import SLO_CLASS_NAMES, TOPOLOGY_NAMES, ClusterSnapshot, State
from autopilot.core.model.units import counted
from autopilot.files import replace_file, write_bytes
from autopilot.policies.dialect import write_yaml
from autopilot.records.journal import JournalReader
from simulator.specs.clusterfile import parse_cluster

TEXTS = (
    "job_id",
    "tenant",
    "user",
    "name",
    "gpu_type",
    "slo_class",
    "mig_profile",
    "topology",
    "trust",
    "share",
    "image",
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The written files, the physics of the recorded run ("" if it states none), and notes."""

    jobs: Path
    cluster: Path
    physics: str
    notes: tuple[str, ...]


def from_journal(journal: Path, folder: Path) -> Recorded:
    """Make the files in `folder`, named by the content of the journal. Raises `InputError`."""
    rows: dict[str, dict[str, Any]] = {}
    last: ClusterSnapshot | None = None
    with JournalReader(journal) as reader:
        about = reader.runs[-1].description if reader.runs else {}
        for tick in reader.ticks():
            snapshot = tick.observation.snapshot
            if len(snapshot.nodes.id):
                last = snapshot
            _note_work(rows, snapshot, tick.observation.now_s)
            _note_starts(rows, tick.decided.decision)
    if last is None:
        raise InputError(f"{journal}: no tick shows a node, so there is no cluster to simulate; give another journal")
    ran = {uid: row for uid, row in rows.items() if row["duration_s"] >= 1.0}
    if not ran:
        raise InputError(f"{journal}: no job ran for a second or more; give a longer recording")
    digest = hashlib.sha256(repr((sorted(ran.items()), _cluster(last))).encode()).hexdigest()[:12]
    jobs, cluster = folder / f"recorded-{digest}.parquet", folder / f"recorded-{digest}.yaml"
    write_bytes(write_yaml(_cluster(last)).encode(), cluster)
    _write_jobs(ran.values(), jobs)
    parse_cluster(cluster)
    return Recorded(jobs, cluster, str(about.get("physics") or ""), _notes(rows, ran))


def _note_work(rows: dict[str, dict[str, Any]], snapshot: ClusterSnapshot, now_s: float) -> None:
    """Take in the workloads of one tick."""
    work = snapshot.workloads
    for at, uid in enumerate(work.uid.tolist()):
        row = rows.get(uid)
        if row is None:
            row = rows[uid] = _row(snapshot, at)
        state, start_s = State(int(work.state[at])), float(work.start_s[at])
        row["_ended"] = ended = state in (State.SUCCEEDED, State.FAILED)
        if not ended:
            row["_served_s"] = float(work.served_s[at])  # progress kept from earlier stays
            if isfinite(start_s):
                row["_start_s"] = start_s
        if state == State.PENDING or row["_start_s"] is None:
            continue
        until_s = float(work.ended_s[at]) if ended and isfinite(work.ended_s[at]) else now_s
        row["duration_s"] = max(row["duration_s"], row["_served_s"] + until_s - row["_start_s"])


def _note_starts(rows: dict[str, dict[str, Any]], decision: Decision) -> None:
    """Starts ordered by the decision: no tick shows work on its GPUs if it ends before the next one."""
    for proposal in decision.plan.proposals:
        if proposal.accepted and proposal.change.starts_now and proposal.subject.uid in rows:
            rows[proposal.subject.uid]["_start_s"] = decision.now_s


def _row(snapshot: ClusterSnapshot, at: int) -> dict[str, Any]:
    """The row of a job file for one workload."""
    work, names = snapshot.workloads, snapshot.names
    tenant, profile = int(work.tenant[at]), int(work.mig_profile[at])
    models = [name for code, name in enumerate(names.gpu_models) if int(work.gpu_models[at]) >> code & 1]
    row: dict[str, Any] = {
        "job_id": str(work.id[at]).replace("/", "-"),
        "tenant": names.tenants[tenant] if tenant >= 0 else "",
        "user": str(work.user[at]),
        "name": str(work.name[at]),
        "submit_s": float(work.submit_s[at]),
        "duration_s": 0.0,
        "gpus": int(work.gpus[at]),
        "gpu_type": models[0] if len(models) == 1 else "",
        "slo_class": SLO_CLASS_NAMES[work.slo_class[at]],
        "priority": int(work.priority[at]),
        "preemptible": bool(work.preemptible[at]),
        "min_gpus": int(work.min_gpus[at]),
        "gpu_milli": int(work.gpu_milli[at]) or None,
        "mig_profile": names.profiles[profile] if 0 <= profile < len(names.profiles) else "",
        "topology": TOPOLOGY_NAMES[work.topology[at]] if work.topology[at] else "",
        "trust": "",
        "share": "",
        "image": str(work.image[at]),
        **stated_sharing(int(work.trust[at]), int(work.share[at])),
        "_ended": False,
        "_start_s": None,
        "_served_s": 0.0,
        "_service": int(work.service[at]) >= 0,
    }
    for name in ("limit_s", "checkpoint_interval_s"):
        value = float(getattr(work, name)[at])
        row[name] = value if isfinite(value) and value > 0 else None
    return row


def _write_jobs(rows: Iterable[dict[str, Any]], path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame([{name: value for name, value in row.items() if name[0] != "_"} for row in rows])
    given = [name for name in frame.columns if name not in TEXTS or frame[name].ne("").any()]
    replace_file(path, lambda temporary: frame[given].to_parquet(temporary, index=False))


def _notes(rows: dict[str, dict[str, Any]], ran: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """Omissions and assumptions."""
    unended = sum(not row["_ended"] for row in ran.values())
    replicas = sum(row["_service"] for row in ran.values())
    found = (
        (len(rows) - len(ran), "workload of the journal|workloads of the journal", "never ran: left out"),
        (unended, "workload|workloads", "not seen to end: run as long as seen"),
        (replicas, "replica of a service|replicas of services", "simulated as jobs"),
    )
    return tuple(f"{counted(count, noun)} {tail}" for count, noun, tail in found if count)


def _cluster(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """The content of a cluster file: pools of equal nodes, and the queues."""
    nodes, names = snapshot.nodes, snapshot.names
    kinds: dict[tuple[int, int, int, tuple[Any, ...]], list[int]] = {}
    for node in range(len(nodes.id)):
        key = (int(nodes.pool[node]), int(nodes.gpu_model[node]), int(nodes.gpus[node]), _cut(snapshot, node))
        kinds.setdefault(key, []).append(node)
    repeated = Counter(pool for pool, *_ in kinds)
    pools = []
    for number, ((pool, model, gpus, cut), rows) in enumerate(kinds.items(), 1):
        entry: dict[str, Any] = {
            "name": names.pools[pool] if repeated[pool] == 1 else f"{names.pools[pool]}-{number}",
            "nodes": len(rows),
            "gpus_per_node": gpus,
            "gpu_model": names.gpu_models[model],
            "spot": bool(nodes.spot[rows[0]]),
        }
        leaves = Counter(nodes.leaf[rows].tolist())
        if len(leaves) > 1:
            entry["nodes_per_leaf"] = max(leaves.values())
        if cut:
            entry["mig"] = [{"gpus_per_node": count, "geometry": dict(geometry)} for geometry, count in cut]
        pools.append(entry)
    document: dict[str, Any] = {"pools": pools}
    queues = [_queue(snapshot, row) for row in range(1, len(snapshot.queues.id))]
    return document | ({"queues": queues} if queues else {})


def _cut(snapshot: ClusterSnapshot, node: int) -> tuple[Any, ...]:
    """The geometries of one node: (profiles with their number, number of GPUs with the geometry)."""
    instances, names = snapshot.instances, snapshot.names
    first, count = int(snapshot.nodes.first_gpu[node]), int(snapshot.nodes.gpus[node])
    by_gpu: dict[int, Counter[str]] = {}
    for gpu, profile in zip(instances.gpu.tolist(), instances.profile.tolist(), strict=True):
        if first <= gpu < first + count and 0 <= profile < len(names.profiles):
            by_gpu.setdefault(gpu, Counter())[names.profiles[profile]] += 1
    return tuple(Counter(tuple(sorted(each.items())) for each in by_gpu.values()).items())


def _queue(snapshot: ClusterSnapshot, row: int) -> dict[str, Any]:
    """One queue of a cluster file; a field without a value keeps its default."""
    queues, models = snapshot.queues, snapshot.names.gpu_models
    entry: dict[str, Any] = {"name": str(queues.id[row]), "weight": float(queues.weight[row])}
    if queues.parent[row] > 0:
        entry["parent"] = str(queues.id[queues.parent[row]])
    own = queues.guarantee[row].tolist()
    if any(own):
        entry["guarantee"] = {model: gpus for model, gpus in zip(models, own, strict=True) if gpus}
    for name in ("limit", "borrow_limit", "lend_limit"):
        if getattr(queues, name)[row] >= 0:
            entry[name] = int(getattr(queues, name)[row])
    if queues.priority[row]:
        entry["priority"] = int(queues.priority[row])
    return entry
