"""Slices, claims and pods of dynamic resource allocation, in the shape of NVIDIA's driver."""

from __future__ import annotations

from typing import Any

from autopilot.core.hardware.mig_profiles import gpu_model
from tests.kits.kube_objects import Json, meta, node, pod

DRIVER = "gpu.nvidia.com"
PRODUCT = "NVIDIA H100 80GB HBM3"
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '{}'"


def text(value: str) -> Json:
    """An attribute."""
    return {"string": value}


def resource_slice(name: str, node_name: str, devices: list[Json], generation: int = 1, **spec: Any) -> Json:
    """A slice of the pool of a node."""
    pool = {"name": node_name, "generation": generation} | spec.pop("pool", {})
    body = {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": meta(f"{name}-{node_name}"), "spec": body | spec}


def whole_gpu(node_name: str, number: int, **more: Any) -> Json:
    """A GPU, as the driver lists it without MIG."""
    attributes = {"uuid": text(f"GPU-{node_name}-{number}"), "type": text("gpu"), "productName": text(PRODUCT)}
    return {"name": f"gpu-{number}", "attributes": attributes | more}


def counters(slices: range) -> Json:
    """One counter for each memory slice."""
    return {f"memory-slice-{k}": {"value": "1"} for k in slices}


def instance(node_name: str, number: int, profile: str, start: int, size: int, **more: Any) -> Json:
    """A MIG device of dynamic MIG: it draws on the counters of its GPU."""
    name = f"gpu-{number}-mig-{profile.replace('.', '').replace('+', '-')}-{size}-{start}"
    attributes = {
        "type": text("mig"),
        "profile": text(profile),
        "parentUUID": text(f"GPU-{node_name}-{number}"),
        "productName": text(PRODUCT),
    }
    draws = {"counterSet": f"gpu-{number}-counter-set", "counters": counters(range(start, start + size))}
    return {"name": name, "attributes": attributes, "consumesCounters": [draws]} | more


def dynamic_slices(node_name: str, gpus: int, generation: int = 1) -> list[Json]:
    """The slices of a node with dynamic MIG: counters, and whole GPUs beside all instances that they could have."""
    model = gpu_model("H100-80GB")
    pool = {"resourceSliceCount": 2}
    sets = [{"name": f"gpu-{k}-counter-set", "counters": counters(range(model.memory_slices))} for k in range(gpus)]
    devices = []
    for k in range(gpus):
        draws = {"counterSet": f"gpu-{k}-counter-set", "counters": counters(range(model.memory_slices))}
        devices.append(whole_gpu(node_name, k) | {"consumesCounters": [draws]})
        devices += [
            instance(node_name, k, profile.name, start, profile.memory_slices)
            for profile in model.profiles
            for start in profile.starts
        ]
    return [
        resource_slice("counters", node_name, [], generation, pool=pool, sharedCounters=sets),
        resource_slice("devices", node_name, devices, generation, pool=pool),
    ]


def dra_node(name: str = "n1") -> Json:
    """A node whose GPUs are offered by a driver and not as a resource."""
    found = node(name, 0, labels={"nvidia.com/gpu.count": ""})
    del found["status"]["capacity"]["nvidia.com/gpu"], found["status"]["allocatable"]["nvidia.com/gpu"]
    return found


def request(profile: str = "", count: int = 1, **more: Any) -> Json:
    """A request for whole GPUs, or for instances of a profile."""
    asked: Json = {"deviceClassName": "mig.nvidia.com" if profile else DRIVER, "allocationMode": "ExactCount"}
    selectors = [{"cel": {"expression": PROFILE.format(profile)}}] if profile else []
    return {"name": "gpu", "exactly": asked | {"count": count, "selectors": selectors} | more}


def claim(
    name: str, *devices: str, pods: tuple[str, ...] = (), asks: list[Json] | None = None, pool: str = "n1"
) -> Json:
    """A claim with devices, for the pods of these names; without devices it waits."""
    results = [{"driver": DRIVER, "pool": pool, "device": device, "request": "gpu"} for device in devices]
    users = [{"resource": "pods", "name": each, "uid": f"uid-team-{each}"} for each in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users} if devices else {}
    spec = {"devices": {"requests": asks if asks is not None else [request()]}}
    return {"kind": "ResourceClaim", "metadata": meta(name, "team"), "spec": spec, "status": status}


def template(name: str, *asks: Json, **devices: Any) -> Json:
    """A template of claims."""
    body = {"devices": {"requests": list(asks)} | devices}
    return {"kind": "ResourceClaimTemplate", "metadata": meta(name, "team"), "spec": {"spec": body}}


def device_class(name: str, expression: str) -> Json:
    """A class of devices."""
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"kind": "DeviceClass", "metadata": meta(name), "spec": spec}


def claiming(name: str, *claims: str, node: str = "", **more: Any) -> Json:
    """A pod that uses these claims."""
    used = [{"name": f"c{k}", "resourceClaimName": each} for k, each in enumerate(claims)]
    return pod(name, 0, node=node, resourceClaims=used, **more)


def by_template(name: str) -> dict[str, Any]:
    """The spec of a pod whose claim is made of a template."""
    return {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}
