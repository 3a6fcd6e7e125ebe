"""Requests of one pod: whole GPUs, MIG instances, CPU and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from autopilot.contract import MOST_GPUS
from autopilot.contract.notes import shown
from autopilot.core.hardware.mig_profiles import find_profile_name
from collectors.kubernetes import quantity
from collectors.kubernetes.wire import Container, PodSpec

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"
SUFFIX = ".shared"
"""Suffix of the device plugin for a resource shared by time (`renameByDefault`)."""
_SCALAR = (str, int, float)
MOST = {"cpu": quantity.MOST_MILLI / 1000, "memory": quantity.MOST_MIB * 2.0**20}
"""Most of a resource in the request of one pod; of GPUs and instances `MOST_GPUS`."""


def is_gpu(resource: str) -> bool:
    """True for GPUs, shares of them, and MIG instances."""
    return resource in {GPU, SHARED} or resource.startswith(MIG)


@dataclass(frozen=True, slots=True)
class Claimed:
    """GPUs and MIG instances by resource claims. `problem`: the unknown part of them; "" for nothing."""

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
    """The request of one pod. `profiles`: MIG profiles with the number of instances, by name.

    `problem`: an unreadable quantity, or one beyond any fleet; it counts as the largest one allowed. `milli`:
    thousandths of each GPU requested from KAI; 0: the GPU, or the part that its node offers as one. `named`: the GPUs
    named by a layer, as in `Parts`.
    """

    gpus: int = 0
    profiles: tuple[tuple[str, int], ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    problem: str = ""
    milli: int = 0
    named: tuple[tuple[str, int], ...] = ()
    shares: bool = False  # it requests shares of GPUs by their own name

    @property
    def any_gpu(self) -> bool:
        """True if the pod requests a GPU or an instance."""
        return self.gpus > 0 or bool(self.profiles)

    @property
    def units(self) -> int:
        """GPUs and instances."""
        return self.gpus + sum(count for _, count in self.profiles)

    def beside(self, claimed: Claimed) -> Ask:
        """The request together with the resource claims of the pod."""
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
    total: dict[str, float | str] = {}
    for each in containers:
        _add(total, _wanted(each))
    for each in spec.init_containers or ():
        if each.restart_policy == "Always":
            _add(total, _wanted(each))
    for each in spec.init_containers or ():
        if each.restart_policy != "Always":
            for name, value in _wanted(each).items():
                total[name] = _joined(total.get(name, 0.0), value, max)
    return _ask(frozenset(total.items()))


@lru_cache(maxsize=4096)
def _ask(wanted: frozenset[tuple[str, Any]]) -> Ask:
    """The request from these resources; only GPUs, CPU and memory count."""
    total: dict[str, float] = {}
    problem = ""
    for name, value in sorted(wanted):
        if not is_gpu(name) and name not in MOST:
            continue
        most = MOST.get(name, MOST_GPUS)
        known = quantity.bounded(value, most)
        if known is None:
            problem = problem or f"{name} is {shown(value)}, which is no quantity from 0 to {most:,.0f}"
        total[name] = most if known is None else known
    profiles = {}
    for name, value in total.items():
        if (
            name.startswith(MIG)
            and value >= 1
            and (profile := find_profile_name(name.removesuffix(SUFFIX))) is not None
        ):
            profiles[str(profile)] = int(value)
    return Ask(
        gpus=int(total.get(GPU, 0.0) + total.get(SHARED, 0.0)),
        profiles=tuple(sorted(profiles.items())),
        cpu_milli=round(total.get("cpu", 0.0) * 1000),
        memory_mib=int(-(-total.get("memory", 0.0) // (1 << 20))),
        problem=problem,
        shares=total.get(SHARED, 0.0) >= 1,
    )


def _wanted(container: Container) -> Mapping[str, Any]:
    """The requests of a container, and its limits for resources without a request."""
    resources = container.resources
    if resources is None:
        return {}
    found = {**(resources.limits or {}), **(resources.requests or {})}
    return {name: value if isinstance(value, _SCALAR) else shown(value) for name, value in found.items()}


def _add(total: dict[str, float | str], wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        total[name] = _joined(total.get(name, 0.0), value, float.__add__)


def _joined(known: float | str, value: Any, join: Callable[[float, float], float]) -> float | str:
    """Two quantities of a resource as one; the first unreadable text stays."""
    if isinstance(known, str):
        return known
    found = quantity.parse(value)
    return str(value) if found is None else join(known, found)
