"""Compares the simulator with the objects of the API, one by one, at one moment.

It reads the world's own books (the holder of each GPU) and the store of the server, and of the projection's memory only
the names of objects.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from autopilot.core.model.snapshot import Recut, State
from autopilot.playground.gangs import JOBS, PODS, WORKLOADS
from autopilot.playground.projection import Projection
from autopilot.playground.shapes import GPU, MIG
from simulator.world.allocation import FREE
from simulator.world.cluster import Cluster
from simulator.world.jobstate import UNSUBMITTED

Obj = dict[str, Any]
OVER = {State.SUCCEEDED, State.FAILED}
MOST_SHOWN = 20
RESOLUTION_S = 2e-6
"""The server counts microseconds, the simulator 1/1024 s."""
Held = Counter[tuple[str, str]]
"""GPUs and instances held, by (node, owner)."""


def disagreements(cluster: Cluster, projection: Projection, now_s: float) -> list[str]:
    """Differences at virtual time `now_s`, one sentence each, at most `MOST_SHOWN`; [] without any."""
    found = [*_clock(projection, now_s), *_nodes(cluster, projection)]
    world, shown = _held(cluster, projection), _shown(projection)
    for key in sorted(world.keys() | shown.keys()):
        if world[key] != shown[key]:
            node, owner = key
            found.append(f"{owner} holds {world[key]} GPUs of node {node}, and its pods show {shown[key]}")
    for job, state in enumerate(cluster.state):
        if state != UNSUBMITTED:
            found += _job(cluster, projection, job)
    return found[:MOST_SHOWN]


def _clock(projection: Projection, now_s: float) -> list[str]:
    server_s = projection.server.timeline.now_s - projection.start_s
    if abs(server_s - now_s) <= RESOLUTION_S:
        return []
    return [f"the server's time is {server_s:.6f} s, and the simulator's {now_s:.6f} s"]


def _nodes(cluster: Cluster, projection: Projection) -> list[str]:
    found = []
    hardware = cluster.hardware
    shown = {each["metadata"]["name"]: each for each in projection.server.store.objects("nodes")}
    for row, name in enumerate(projection.nodes.names):
        node = shown.pop(name, None)
        if node is None:
            found.append(f"node {name} is not shown")
            continue
        conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        if (conditions["Ready"] == "True") != hardware.ready[row]:
            found.append(f"node {name}: ready is {hardware.ready[row]}, and Ready is {conditions['Ready']}")
        if bool(node["spec"].get("unschedulable")) != hardware.cordoned[row]:
            found.append(f"node {name}: cordoned is {hardware.cordoned[row]}, and unschedulable is not")
        found += _offers(cluster, row, node)
    return [*found, *(f"node {name} is shown and does not exist" for name in shown)]


def _offers(cluster: Cluster, row: int, node: Obj) -> list[str]:
    """GPUs and instances by profile; none while geometry or sharing change."""
    hardware, name, state = cluster.hardware, node["metadata"]["name"], cluster.recuts.node_state(row)
    first, count = hardware.first_gpu[row], hardware.node_gpus[row]
    there: Counter[str] = Counter()
    stopped = state == Recut.CHANGING or cluster.sharings.turning(row)
    shares = hardware.split.shares.get(row, 1)
    for gpu in range(first, first + count) if not stopped else ():
        if hardware.healthy[gpu]:
            parts = [f"{MIG}{hardware.instances[part].profile}".replace("+", ".") for part in hardware.cut.get(gpu, ())]
            there.update(parts if hardware.mig[gpu] else [GPU] * shares)
    shown = {key: int(n) for key, n in node["status"]["allocatable"].items() if key == GPU or key.startswith(MIG)}
    found = [
        f"node {name}: {there[key]} of {key} work, and allocatable is {shown.get(key, 0)}"
        for key in sorted({*there, *shown})
        if there[key] != shown.get(key, 0)
    ]
    says = node["metadata"]["labels"].get("nvidia.com/mig.config.state", "")
    if (says == "pending") != (state == Recut.CHANGING) or (state == Recut.FAILED and says != "failed"):
        found.append(f"node {name}: its geometry is {state.name}, and nvidia.com/mig.config.state is {says!r}")
    return found


def _owner(projection: Projection, job: int) -> str:
    gang = projection.gangs.get(job)
    return f"{gang.namespace}/{gang.name}" if gang is not None else f"job {projection.cluster.jobs.id[job]}"


def _held(cluster: Cluster, projection: Projection) -> Held:
    """By the books of the hardware."""
    hardware, found = cluster.hardware, Counter[tuple[str, str]]()
    holders = [(gpu, job) for gpu, job in enumerate(hardware.holder) if job >= 0]
    holders += [(gpu, job) for gpu, jobs in hardware.split.on.items() for job in jobs]
    holders += [(hardware.instances[row].gpu, job) for row, job in enumerate(hardware.instance_holder) if job != FREE]
    for gpu, job in holders:
        found[projection.nodes.names[hardware.node_of[gpu]], _owner(projection, job)] += 1
    return found


def _shown(projection: Projection) -> Held:
    """GPUs held by the pods on a node that have not ended."""
    found: Held = Counter()
    for pod in projection.server.store.objects(PODS):
        if pod["status"].get("phase") in {"Succeeded", "Failed"} or not pod["spec"].get("nodeName"):
            continue
        owner = next((each for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")), None)
        name = owner["name"] if owner is not None and owner["kind"] == "Job" else pod["metadata"]["name"]
        units = 0
        for container in pod["spec"]["containers"]:
            resources = container.get("resources", {})
            wanted = resources.get("limits", {}) | resources.get("requests", {})
            units += sum(int(amount) for key, amount in wanted.items() if key == GPU or key.startswith(MIG))
        found[pod["spec"]["nodeName"], f"{pod['metadata']['namespace']}/{name}"] += units
    return found


def _by_kueue(projection: Projection, job: int, *, holds: bool) -> tuple[bool, bool, bool]:
    """By the books of the engine: (it holds quota, it is admitted, it can never start)."""
    engine = projection.checked
    if engine is None:
        return holds, holds, False
    entry = engine.entry(job)
    return engine.reserved(job) or holds, entry.admitted, entry.over


def _plain(projection: Projection, job: int, stored: Obj, name: str) -> list[str]:
    """A Job in no queue: it has no Workload, and its pods exist unless it is suspended."""
    engine, suspended = projection.checked, bool(stored["spec"].get("suspend"))
    if engine is None or engine.entry(job).admitted != suspended:
        return []
    return [f"{name} is suspended: {suspended}, and the engine runs it: {suspended}"]


def _job(cluster: Cluster, projection: Projection, job: int) -> list[str]:
    """Job or pod, and Workload, of one submitted job."""
    gang, state = projection.gangs.get(job), State(cluster.state[job])
    over, name = state in OVER, _owner(projection, job)
    if gang is None:
        return [] if over else [f"{name} is {state.name}, and has no objects"]
    store = projection.server.store
    service = cluster.jobs.service[job] >= 0
    if service and over:
        return []
    stored = store.get(PODS if service else JOBS, gang.namespace, gang.name)
    workload = store.get(WORKLOADS, gang.namespace, gang.workload) if not gang.plain else None
    if gang.plain and stored is not None:
        return _plain(projection, job, stored, name) if not over else []
    if stored is None or workload is None:
        return [f"{name} is {state.name}, and its {'owner' if stored is None else 'Workload'} is not shown"]
    true = {each["type"] for each in workload["status"].get("conditions", ()) if each["status"] == "True"}
    holds, found = cluster.held[job] is not None, []
    reserved, admitted, never = _by_kueue(projection, job, holds=holds)
    over |= never
    expected = {"QuotaReserved": reserved or (over and not never), "Finished": over}
    expected["Admitted"] = (admitted or holds or over) and not never
    expected["PodsReady"] = state in {State.RUNNING, State.CHECKPOINTING} if not over else "PodsReady" in true
    for kind, wanted in expected.items():
        if (kind in true) != wanted:
            found.append(f"{name} is {state.name}, and {kind} of its Workload is {kind in true}")
    runs = admitted or (over and not never)
    if service:
        gated = bool(stored["spec"].get("schedulingGates"))
        if gated == (runs or holds):
            found.append(f"{name} is {state.name}, and its pod is gated: {gated}")
        return found
    if stored["spec"].get("suspend", False) == runs:
        found.append(f"{name} is {state.name}, and its Job is suspended: {stored['spec'].get('suspend', False)}")
    return found
