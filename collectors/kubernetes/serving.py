"""Pods that serve requests, by their owners, their readiness probes, and the labels of serving systems on them.

Servers are idle between requests, so they never count as hung.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from autopilot.core.model.objects import ServingRole
from collectors.kubernetes.wire import NOTHING, Container, Meta

SET_NAME = "leaderworkerset.sigs.k8s.io/name"
POD_GROUP_SERVES = "kueue.x-k8s.io/pod-group-serving"
"""Kueue's mark on the pods of a StatefulSet or LeaderWorkerSet admitted as a group."""

OWNERS = frozenset(
    {
        "ReplicaSet",
        "StatefulSet",
        "LeaderWorkerSet",
        "RayService",
        "InferenceService",
        "LLMInferenceService",
        "PodClique",
        "ModelServing",
        "Model",
        "CloneSet",
    }
)
"""Kinds that own pods that serve: of Kubernetes, LeaderWorkerSet, KubeRay, KServe, Grove, Volcano's
kthena, KubeAI and OpenKruise."""

KEYS = (
    SET_NAME,
    POD_GROUP_SERVES,
    "ray.io/serve",  # KubeRay, on the pods of a RayService only; "false" while one is not ready
    "serving.kserve.io/",
    "serving.knative.dev/",
    "nvidia.com/dynamo-",
    "grove.io/",
    "llm-d.ai/",
    "modelserving.volcano.sh/",
    "model.aibrix.ai/",
    "storm-service-name",
    "disaggregatedset.x-k8s.io/",
    "rolebasedgroup.workloads.x-k8s.io/",
    "rbg.workloads.x-k8s.io/",
    "seldon-deployment-id",
)
"""Beginnings of the labels and annotations of serving systems on their pods."""

CLIQUE, CLIQUE_SET = "grove.io/podclique", "app.kubernetes.io/part-of"
"""Labels with the names of the PodClique and the PodCliqueSet of a pod of Grove: `SET-0-decode`, `SET`."""
SCALING_GROUP, SCALING_INDEX = "grove.io/podcliquescalinggroup", "grove.io/podcliquescalinggroup-replica-index"
"""Labels with the name of the scaling group of a clique and the number of its replica there."""
LEADER_SETS, CLIQUE_SETS = "LeaderWorkerSet/", "PodCliqueSet/"
GROUPED = (LEADER_SETS, CLIQUE_SETS)
"""Beginnings of the names of services with groups of pods as replicas."""

ASKS = frozenset({"httpGet", "grpc"})
"""Readiness probes answered by a server. A training framework opens ports too, and KubeRay runs a command."""

CREATED_BY = "ray.io/originated-from-crd"
COMPONENT = "app.kubernetes.io/component"
COMPONENTS = frozenset({"inference", "inference-server", "model-server", "serving", "predictor", "prefill", "decode"})
"""Values of the recommended label for the part of a pod, with which plain pods and JobSets say that they serve."""


ROLES = (
    "llm-d.ai/role",  # llm-d, and KServe for an LLMInferenceService
    "nvidia.com/dynamo-sub-component-type",  # Dynamo, beside a component type of worker
    "nvidia.com/dynamo-component-type",  # Dynamo, from its API v1beta1 on
    "disaggregatedset.x-k8s.io/role",  # DisaggregatedSet of LeaderWorkerSet
    "modelserving.volcano.sh/role",  # Volcano's kthena
    "rolebasedgroup.workloads.x-k8s.io/role",  # RoleBasedGroup up to v1alpha1
    "rbg.workloads.x-k8s.io/role-name",  # RoleBasedGroup from v1alpha2 on
    "role-name",  # StormService of AIBrix
    COMPONENT,
)
"""Labels whose value names the part of each request that a pod does: `prefill`, `vllm-decode-worker`. Values that name
both (`prefill-decode`) or neither (`both`, `worker`) name no part."""


def role_of(*metas: Meta) -> ServingRole:
    """The role by labels; `WHOLE` without one, or if they contradict each other."""
    return role_in(meta.label(key) for meta in metas for key in ROLES)


def role_in(names: Iterable[str]) -> ServingRole:
    """The role in these names; `WHOLE` without one, or if they contradict each other."""
    said = set()
    for name in names:
        prefill, decode = "prefill" in name.lower(), "decode" in name.lower()
        if prefill != decode:
            said.add(ServingRole.PREFILL if prefill else ServingRole.DECODE)
    return said.pop() if len(said) == 1 else ServingRole.WHOLE


def clique_set_of(meta: Meta, gang: str) -> str:
    """The PodCliqueSet of a pod of Grove: by its label, else the name of its PodGang without the number."""
    return CLIQUE_SETS + (meta.label(CLIQUE_SET) or re.sub(r"-[0-9]+$", "", gang))


def serves(meta: Meta) -> bool:
    """True for a pod that serves requests."""
    owner = meta.owner
    if owner is not None and owner.kind in OWNERS:
        return True
    labels = meta.labels or NOTHING
    if labels.get(CREATED_BY) == "RayService" or ((part := labels.get(COMPONENT)) and part.lower() in COMPONENTS):
        return True
    return _marked(tuple(labels)) or (bool(meta.annotations) and _marked(tuple(meta.annotations or ())))


def answers(containers: Sequence[Container]) -> bool:
    """True if a container is ready by an answer to a request: batch work waits for none."""
    return any(each.readiness_probe and not ASKS.isdisjoint(each.readiness_probe) for each in containers)


@lru_cache(maxsize=4096)
def _marked(keys: tuple[str, ...]) -> bool:
    """True if a serving system wrote one of these labels or annotations; pods of one template have the same."""
    return any(key.startswith(KEYS) for key in keys)
