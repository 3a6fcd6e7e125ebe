"""`autopilot run` as a process on a cluster, limited to the namespace and the nodes of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from autopilot.crds.definitions import recommendation_definition
from autopilot.settings import expert_apart
from tests.e2e.test_prometheus_collector import free_port
from tests.kits.real_cluster import RealCluster, is_true
from tests.kits.run_account import make_account
from tests.service.kit import Running, settings, start

QUEUE = "kueue.x-k8s.io/queue-name"
CONTRACT = "gpu-autopilot.io/"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RECOMMENDATIONS = "/apis/gpu-autopilot.io/v1alpha1/recommendations"
SHOWN = 20
"""Recommendations that are kept as objects."""
KINDS = ("admit", "cordon", "evict", "notify", "recut")
"""Kinds of instructions of the stories."""
LOOP = {"interval_s": 1, "least_s": 0.3}
"""It decides often, so that a story does not take long."""
POLICY: dict[str, Any] = {
    "base": "recommend",
    "name": "e2e",
    "modes": {
        "admit_gang": "auto",
        "backfill": "auto",
        "reclaim_borrowed": "auto",
        "preempt": "auto",
        "recover": "auto",
    },
    "hysteresis": {"dwell_s": 0, "cool_down_s": 0},
    "protection": {"min_runtime_s": 0},
}


class DecidingService:
    """The service beside a run, which has one queue of Kueue with our check."""

    def __init__(self, cluster: RealCluster, folder: Path, gpus: int = 32) -> None:
        """`folder`: for its files. `gpus`: quota of the queue, more than the nodes have."""
        self.cluster, self.folder = cluster, folder
        self.prometheus = f"127.0.0.1:{free_port()}"
        """Where a story may serve telemetry; nobody listens otherwise."""
        self.no_recommendations = define_recommendations(cluster)
        """Why none are kept as objects; "" where they are."""
        cluster.queue("work", gpus, preemption={"withinClusterQueue": "LowerPriority"})
        self.policy()
        self.running = self._start(make_account(cluster, folder, KINDS))

    def _start(self, account: Path) -> Running:
        kubernetes = {
            "kubeconfig": str(account),
            "namespaces": [self.cluster.space],
            "act": True,
            "act_kinds": list(KINDS),
            "watch_s": 5,
            "recommendations": 0 if self.no_recommendations else SHOWN,
        }
        collectors = {"prometheus": {"url": f"http://{self.prometheus}"}}
        more = {"policy": str(self.folder / "policy.yaml"), "metrics": {"listen": None}, "loop": LOOP}
        content = settings(self.folder / "state", kubernetes=kubernetes, collectors=collectors, **more)
        del content["simulation"]
        return start(self.folder, content)

    def policy(self, **parts: Any) -> None:
        """Write the policy; the service takes it up at its next tick. `parts` replace or add parts."""
        whole = {**parts, **POLICY} | {name: {**POLICY.get(name, {}), **part} for name, part in parts.items()}
        text = yaml.safe_dump(expert_apart(whole))
        written = self.folder / "policy.new"
        written.write_text(text, "utf-8")
        written.replace(self.folder / "policy.yaml")

    def job(self, name: str, pods: int = 1, gpus: int = 8, **declared: str) -> str:
        """A Job in the queue; its uid. `declared`: its workload contract, with _ for -."""
        notes = {CONTRACT + key.replace("_", "-"): value for key, value in declared.items()}
        return self.cluster.job(name, pods, gpus, labels={QUEUE: "work"}, notes=notes, suspend=True)

    def look(self, times: int) -> None:
        """Wait until the service has decided this often from now on."""
        first = self.running.tick()
        self.cluster.until(lambda: self.running.tick() >= first + times, f"{times} ticks of the service")

    def log(self) -> str:
        """The end of the log of the service."""
        return self.running.log.read_text("utf-8")[-4000:]

    def close(self) -> None:
        """End the process."""
        if self.running.process.poll() is None:
            self.running.end()


def define_recommendations(cluster: RealCluster) -> str:
    """Create the definition where it is absent; why Recommendations cannot be used, "" where they can."""
    definition = recommendation_definition()
    path = f"{DEFINITIONS}/{definition['metadata']['name']}"
    if not cluster.get(path):
        body = {key: value for key, value in definition.items() if key != "metadata"}
        cluster.create(DEFINITIONS, body, definition["metadata"]["name"])
        cluster.until(lambda: is_true(cluster.get(path), "Established"), "the definition of Recommendations is served")
        cluster.until(lambda: cluster.get(RECOMMENDATIONS), "Recommendations are served")
    elif cluster.items(RECOMMENDATIONS):
        return "the cluster has Recommendations of another installation; remove it to run this story"
    return ""
