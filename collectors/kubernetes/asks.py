"""What one pod asks for: whole GPUs, MIG instances, CPU and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from autopilot.core.hardware.mig_profiles import find_profile_name
from collectors.kubernetes import quantity
from collectors.kubernetes.wire import Container, PodSpec

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"


def is_gpu(resource: str) -> bool:
    """Whether a resource of a node is GPUs, shares of them, or MIG instances."""
    return resource in {GPU, SHARED} or resource.startswith(MIG)


@dataclass(frozen=True, slots=True)
class Claimed:
    """GPUs and MIG instances by resource claims. `problem`: what of them is not known; "" for nothing."""

    gpus: int = 0
    profiles: tuple[tuple[str, int], ...] = ()
    problem: str = ""

    def __add__(self, other: Claimed) -> Claimed:
        """Both together, with the first problem."""
        profiles = _both(self.profiles, other.profiles)
        return Claimed(self.gpus + other.gpus, profiles, self.problem or other.problem)


UNCLAIMED = Claimed()


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of one pod. `profiles`: MIG profiles with the number of instances, by name."""

    gpus: int = 0
    profiles: tuple[tuple[str, int], ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0

    @property
    def any_gpu(self) -> bool:
        """True where it asks for a GPU or an instance."""
        return self.gpus > 0 or bool(self.profiles)

    @property
    def units(self) -> int:
        """GPUs and instances."""
        return self.gpus + sum(count for _, count in self.profiles)

    def beside(self, claimed: Claimed) -> Ask:
        """The request with what the claims of the pod ask for."""
        if not claimed.gpus and not claimed.profiles:
            return self
        profiles = _both(self.profiles, claimed.profiles)
        return replace(self, gpus=self.gpus + claimed.gpus, profiles=profiles)


def _both(one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Numbers by profile, added up."""
    counts = dict(one)
    for name, count in other:
        counts[name] = counts.get(name, 0) + count
    return tuple(sorted(counts.items()))


def ask_of(spec: PodSpec) -> Ask:
    """The request of a pod: its containers and sidecars together, or one init container if that asks for more."""
    containers = spec.containers or []
    if len(containers) == 1 and not spec.init_containers:
        return _ask(frozenset(_wanted(containers[0]).items()))
    total: dict[str, float] = {}
    for each in containers:
        _add(total, _wanted(each))
    for each in spec.init_containers or ():
        if each.restart_policy == "Always":
            _add(total, _wanted(each))
    for each in spec.init_containers or ():
        if each.restart_policy != "Always":
            for name, value in _wanted(each).items():
                total[name] = max(total.get(name, 0.0), quantity.parse(value) or 0.0)
    return _ask(frozenset(total.items()))


@lru_cache(maxsize=4096)
def _ask(wanted: frozenset[tuple[str, Any]]) -> Ask:
    """The part of these resources that counts."""
    total = {name: quantity.parse(value) or 0.0 for name, value in wanted}
    profiles = {}
    for name, value in total.items():
        if name.startswith(MIG) and value >= 1 and (profile := find_profile_name(name)) is not None:
            profiles[str(profile)] = int(value)
    return Ask(
        gpus=int(total.get(GPU, 0.0) + total.get(SHARED, 0.0)),
        profiles=tuple(sorted(profiles.items())),
        cpu_milli=round(total.get("cpu", 0.0) * 1000),
        memory_mib=int(-(-total.get("memory", 0.0) // (1 << 20))),
    )


def _wanted(container: Container) -> Mapping[str, Any]:
    """The requests of a container, and its limits where it states no request."""
    resources = container.resources
    if resources is None:
        return {}
    if not resources.limits:
        return resources.requests or {}
    return {**resources.limits, **(resources.requests or {})}


def _add(total: dict[str, float], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        total[name] = total.get(name, 0.0) + (quantity.parse(value) or 0.0)
