"""A node of MIG instances on any cluster, and its MIG manager, which the test plays: GPU operator, labels, amounts.

The file of the manager has the entries of earlier changes: for a new one the autopilot waits two minutes.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from actuators.kubernetes.levers.mig_config import CONFIG_MAP
from actuators.kubernetes.mig_file import Cuts, entry_of, layouts_of, resources_of
from actuators.kubernetes.mig_node import CONFIG, DEPLOY, PAUSED, STATE
from apiserver.actors.mig_manager import CLIENTS
from autopilot.playground.gpu_operator import DEFINITION, operator_objects
from tests.kits.mig_kit import labels_of_small
from tests.kits.real_cluster import CORE, Obj, RealCluster, is_true

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
WHOLE, SMALL, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
AT_FIRST = Cuts({"1g.10gb": 7})
EARLIER = (AT_FIRST, Cuts({"3g.40gb": 2}), *(Cuts({"3g.40gb": 1, "1g.10gb": count}) for count in range(1, 5)))
"""What a GPU of the node was cut into before: whatever is chosen for one half."""


class PlayedMig:
    """A node of one GPU in seven instances. Where the cluster has a GPU operator, the story is skipped."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster, self.node = cluster, cluster.cut
        name = DEFINITION["metadata"]["name"]
        if cluster.get(f"{DEFINITIONS}/{name}"):
            pytest.skip("the cluster has a GPU operator; the MIG manager of this story is played, beside none")
        cluster.create(DEFINITIONS, {**DEFINITION, "metadata": {}}, name)
        cluster.until(lambda: is_true(cluster.get(f"{DEFINITIONS}/{name}"), "Established"), "ClusterPolicies exist")
        cluster.until(lambda: cluster.get(POLICIES), "ClusterPolicies are served")
        self._entries: dict[str, Any] = {"small": entry_of((AT_FIRST,))[1]} | dict(
            entry_of((each,)) for each in EARLIER
        )
        _, (_, config_map), (_, policy) = operator_objects(self._entries)
        cluster.create(cluster.inside(CORE, "configmaps"), config_map, CONFIG_MAP)
        cluster.create(POLICIES, {**policy, "status": {"namespace": cluster.space}}, policy["metadata"]["name"])
        labels = labels_of_small() | {"nvidia.com/gpu.count": "1"}
        cluster.add_node(self.node, labels, {WHOLE: "0", SMALL: "7", HALF: "0"})

    @property
    def labels(self) -> dict[str, str]:
        """Of the node."""
        found: dict[str, str] = self._read()["metadata"]["labels"]
        return found

    def cordoned(self) -> bool:
        """Whether the node takes no new pods."""
        return bool(self._read()["spec"].get("unschedulable"))

    def asked(self) -> str:
        """The configuration that the manager is asked for and has not begun; "" for none."""
        labels = self.labels
        return "" if STATE in labels else labels[CONFIG]

    def begin(self) -> None:
        """The manager stops the clients of the GPU, and nothing of it can be allocated."""
        self._label({STATE: "pending"} | {DEPLOY + each: PAUSED for each in CLIENTS})
        self._cluster.offer(self.node, dict.fromkeys((WHOLE, SMALL, HALF), "0"))

    def end(self) -> None:
        """The GPU is cut as the label says; the clients come back, and announce the instances."""
        path = f"{self._cluster.inside(CORE, 'configmaps')}/{CONFIG_MAP}"
        entries = yaml.safe_load(self._cluster.get(path)["data"]["config.yaml"])["mig-configs"]
        (layout,) = layouts_of(entries, self.labels[CONFIG], 1)
        amounts = {name: str(count) for name, count in resources_of(layout).items()}
        self._cluster.offer(self.node, dict.fromkeys((WHOLE, SMALL, HALF), "0") | amounts)
        self._label({STATE: "success"} | {DEPLOY + each: "true" for each in CLIENTS})

    def _label(self, labels: Obj) -> None:
        self._cluster.patch(f"{CORE}/nodes/{self.node}", {"metadata": {"labels": labels}})

    def _read(self) -> Obj:
        return self._cluster.get(f"{CORE}/nodes/{self.node}")
