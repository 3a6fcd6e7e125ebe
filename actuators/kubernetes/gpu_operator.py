"""The ClusterPolicy of NVIDIA's GPU operator."""

from __future__ import annotations

from actuators.kubernetes.api import Answer, Api, Obj, Refusal


def cluster_policy(api: Api) -> Obj | Answer:
    """The ClusterPolicy; {} for none, or the failed request."""
    listed = api.list("ClusterPolicy")
    if isinstance(listed, Answer):
        return listed
    return next((Answer({}, Refusal.UNFIT, why) for why in listed.unread), next(iter(listed.items), {}))


def space_of(policy: Obj) -> str:
    """The namespace of the GPU operator."""
    return (policy.get("status") or {}).get("namespace") or "gpu-operator"


def config_of(policy: Obj, component: str) -> str:
    """The ConfigMap of a component (`migManager`, `devicePlugin`); "" for none."""
    found = (policy.get("spec") or {}).get(component) or {}
    return (found.get("config") or {}).get("name") or ""
