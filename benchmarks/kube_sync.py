"""CPU and memory of the Kubernetes sources at 20,000 pods on 2,000 nodes.

The bytes are those that an API server sends (4 kB for a pod, with managed fields, in pages of 500). Measured is the CPU
of this process after they arrived: to decode them, to keep them, to make the tables and to assemble the snapshot. Half
of the pods are members of Jobs under Kueue, the others are replicas of Deployments, single pods, and pods without GPUs.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.listing import views_of
from benchmarks.kit import FIGURE, ended, judged, options
from collectors.kubernetes import kinds
from collectors.kubernetes.collector import KubernetesCollector
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import ApiError, Lines

NOW_S = 1_790_000_000.0
PAGE, PER_GANG = 500, 4
SYNC_S, UNCHANGED_S, WATCH_RATIO, MEMORY_MIB = 2.0, 0.05, 0.2, 500.0
"""Goals."""

Json = dict[str, Any]


def _meta(name: str, number: int, namespace: str = "", **more: Any) -> Json:
    """Metadata as large as that of real objects."""
    managed = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-09-21T10:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {f"f:{field}-{k}": {".": {}, "f:name": {}, "f:value": {}} for k in range(12)},
        }
        for manager, field in (("kube-controller-manager", "spec"), ("kubelet", "status"))
    ]
    return {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "uid": f"00000000-0000-4000-8000-{number:012d}",
        "resourceVersion": str(1000 + number),
        "creationTimestamp": "2026-09-21T10:00:00Z",
        "managedFields": managed,
        **more,
    }


def _node(k: int) -> Json:
    has = {"cpu": "192", "memory": "2113431260Ki", "pods": "250", "nvidia.com/gpu": "8"}
    labels = {
        "kubernetes.io/hostname": f"node-{k:05}",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "topology.kubernetes.io/zone": f"zone-{k % 3}",
        "network.topology.nvidia.com/leaf": f"leaf-{k // 32}",
    }
    return {
        "metadata": _meta(f"node-{k:05}", k, labels=labels),
        "spec": {},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-09-21T10:00:00Z", "reason": "r"}
                for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
            ],
        },
    }


def _pod(k: int, nodes: int) -> Json:
    """Pod number k: every second one a member of a Job, every eighth without a GPU."""
    owner: Json = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"svc-{k % 50}-abc", "uid": f"rs-{k % 50}"}
    labels = {"app": f"svc-{k % 50}", "pod-template-hash": "abc"}
    if k % 2 == 0:
        gang = k // 2 // PER_GANG
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{gang}", "uid": _uid(300_000 + gang)}
        labels = {"batch.kubernetes.io/job-name": f"job-{gang}"}
    gpus = 0 if k % 8 == 1 else 1
    asked = {"cpu": "4", "memory": "16Gi", **({"nvidia.com/gpu": "1"} if gpus else {})}
    node = f"node-{k // 8 % nodes:05}" if k < nodes * 8 else ""
    env = [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(8)]
    name = f"pod-{k:05}"
    return {
        "metadata": _meta(
            name, 100_000 + k, f"team-{k % 40}", labels=labels, ownerReferences=[{**owner, "controller": True}]
        ),
        "spec": {
            **({"nodeName": node} if node else {}),
            "priority": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry/app:1",
                    "env": env,
                    "resources": {"requests": asked, "limits": asked},
                }
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "startTime": "2026-09-21T10:00:01Z",
            "conditions": [
                {"type": kind, "status": "True" if node else "False", "lastTransitionTime": "2026-09-21T10:00:01Z"}
                for kind in ("Ready", "PodScheduled", "ContainersReady", "Initialized")
            ],
        },
    }


def _uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def _job(gang: int) -> Json:
    asked = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]}}
    return {
        "metadata": _meta(f"job-{gang}", 300_000 + gang, f"team-{gang * 8 % 40}"),
        "spec": {"parallelism": PER_GANG, "completions": PER_GANG, "template": template},
        "status": {},
    }


def _workload(gang: int) -> Json:
    job = _job(gang)
    owner = {"kind": "Job", "name": f"job-{gang}", "uid": job["metadata"]["uid"], "controller": True}
    admission = {"clusterQueue": f"queue-{gang % 40}", "podSetAssignments": [{"name": "main", "count": PER_GANG}]}
    return {
        "metadata": _meta(f"job-job-{gang}", 500_000 + gang, job["metadata"]["namespace"], ownerReferences=[owner]),
        "spec": {
            "queueName": "local",
            "priority": gang % 3,
            "podSets": [{"name": "main", "count": PER_GANG, "template": job["spec"]["template"]}],
        },
        "status": {
            "admission": admission,
            "conditions": [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")],
        },
    }


def _queue(k: int) -> Json:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": "400"}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [quota]}]}
    return {"metadata": _meta(f"queue-{k}", 700_000 + k), "spec": {"cohortName": "all", "resourceGroups": [group]}}


class Recorded:
    """Answers that lie ready as bytes: pages of each kind, and the events of one watch."""

    def __init__(self, nodes: int, pods: int) -> None:
        gangs = pods // 2 // PER_GANG
        flavor = {"metadata": _meta("h100", 800_000), "spec": {"nodeLabels": {"nvidia.com/gpu.count": "8"}}}
        objects = {
            kinds.NODES: [_node(k) for k in range(nodes)],
            kinds.PODS: [_pod(k, nodes) for k in range(pods)],
            kinds.JOBS: [_job(k) for k in range(gangs)],
            kinds.WORKLOADS: [_workload(k) for k in range(gangs)],
            kinds.CLUSTER_QUEUES: [_queue(k) for k in range(40)],
            kinds.FLAVORS: [flavor],
        }
        self.pages = {kind.path(): _pages(objects.get(kind, [])) for kind in kinds.KINDS}
        self.bytes = sum(len(page) for pages in self.pages.values() for page in pages)
        self.events: list[bytes] = []
        self.version = 900_000

    def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """A page."""
        return self.pages[path][int(query.get("continue", "0"))]

    def watch(self, path: str, query: Mapping[str, str], silence_s: float) -> Lines:
        """No streaming lists; a watch of pods has the events, any other one a bookmark."""
        if "sendInitialEvents" in query:
            raise ApiError(422, "sendInitialEvents is forbidden")
        return _Lines(self.events if path == kinds.PODS.path() else [], self.version)


class _Lines:
    def __init__(self, lines: Sequence[bytes], version: int) -> None:
        self._lines, self._version = lines, version

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        yield f'{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{self._version}"}}}}}}'.encode()

    def close(self) -> None:
        """Nothing is open."""


def _pages(objects: list[Json]) -> list[bytes]:
    count = max(-(-len(objects) // PAGE), 1)
    return [
        json.dumps(
            {
                "metadata": {"resourceVersion": "900000", **({"continue": str(k + 1)} if k + 1 < count else {})},
                "items": objects[k * PAGE : (k + 1) * PAGE],
            }
        ).encode()
        for k in range(count)
    ]


def _events(pods: int, nodes: int, count: int, start: int) -> list[bytes]:
    """Changes of pods: their readiness flips; every fifth event is of a waiting pod that gets a node, or loses it."""
    lines = []
    for number in range(start, start + count):
        late = number % 5 == 0 and pods > nodes * 8
        pod = _pod(nodes * 8 + number % (pods - nodes * 8) if late else number * 7 % pods, nodes)
        if late and number % 2:
            pod["spec"]["nodeName"] = f"node-{number % nodes:05}"
        pod["metadata"]["resourceVersion"] = str(1_000_000 + number)
        pod["status"]["conditions"][0]["status"] = "False" if number % 2 else "True"
        lines.append(json.dumps({"type": "MODIFIED", "object": pod}).encode())
    return lines


def measure(nodes: int, pods: int, seconds: int) -> dict[str, float]:
    """The figures of one cluster."""
    with ProcessPoolExecutor(1) as pool:  # what it takes to write the bytes is not measured
        recorded = pool.submit(Recorded, nodes, pods).result()
    gc.collect()
    before_mib = _resident_mib()
    cluster = Cluster(recorded, lambda: NOW_S, rng=random.Random(1))
    collector = KubernetesCollector(cluster)
    began_s = time.process_time()
    cluster.step_all()  # asks for streaming lists, which the server refuses
    cluster.step_all()
    decoded_s = time.process_time()
    batch = collector.collect(NOW_S)
    snapshot, _ = assemble([batch], NOW_S)
    synced_s = time.process_time()
    known: dict[str, set[str]] = {}
    shown: dict[str, Any] = {}
    unchanged = []
    for k in range(5):
        start_s = time.process_time()
        batch = collector.collect(NOW_S + k)
        assemble([batch], NOW_S + k)
        _, shown = views_of([batch], (), known, shown)
        known = {key: each.objects for key, each in shown.items()}
        unchanged.append(time.process_time() - start_s)
    watched_s = 0.0
    for k in range(seconds):
        recorded.events, recorded.version = _events(pods, nodes, 500, 500 * k), 1_000_000 + 500 * (k + 1)
        start_s = time.process_time()
        cluster.step_all()
        collector.collect(NOW_S + k)
        watched_s += time.process_time() - start_s
    return {
        "nodes": nodes,
        "pods": pods,
        "gpus": len(snapshot.gpus.uuid),
        "workloads": len(snapshot.workloads.id),
        "megabytes": recorded.bytes / 1e6,
        "decode_s": decoded_s - began_s,
        "tables_s": synced_s - decoded_s,
        "sync_s": synced_s - began_s,
        "unchanged_s": sorted(unchanged)[len(unchanged) // 2],
        "watch_ratio": watched_s / seconds,
        "memory_mib": _resident_mib() - before_mib,
    }


def _resident_mib() -> float:
    """Resident memory now (Linux)."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 1 where one misses its goal."""
    given = options(__doc__, arguments)
    found = measure(200, 2000, 3) if given.quick else measure(2000, 20_000, 10)
    rows = (
        ("first sync, s of CPU after the bytes arrived", "sync_s", SYNC_S),
        ("  of it decoding and keeping", "decode_s", None),
        ("  of it tables and snapshot", "tables_s", None),
        ("unchanged view until it is assembled, s of CPU", "unchanged_s", UNCHANGED_S),
        ("500 watch events/s, share of a core", "watch_ratio", WATCH_RATIO),
        ("memory above the start, MiB", "memory_mib", MEMORY_MIB),
    )
    print(
        f"{found['nodes']:,.0f} nodes, {found['pods']:,.0f} pods, {found['workloads']:,.0f} gangs, "
        f"{found['megabytes']:.0f} MB of JSON"
    )
    lines = [
        (title, f"{found[key]:.3f}" if goal is None else judged(found[key], goal, digits=3))
        for title, key, goal in rows
    ]
    return ended(given, FIGURE, lines, found)


if __name__ == "__main__":
    raise SystemExit(main())
