"""Devices in the slices of NVIDIA's DRA driver, and the GPUs and MIG instances that exist by them.

A MIG device without counters exists (static MIG). With dynamic MIG the driver lists every possible instance of a GPU
beside the GPU itself. They all draw on the counters of that GPU, one of them for each memory slice, and an instance
exists only while a claim has it. The memory slices state the place of the instance.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from autopilot.contract.notes import shown
from autopilot.core.hardware.mig_profiles import find_gpu_model, find_profile, find_profile_name
from collectors.kubernetes import quantity
from collectors.kubernetes.devices import Gpu, Part
from collectors.kubernetes.dra_wire import Device, ResourceSlice

DRIVER = "gpu.nvidia.com"
FIRST_OWN_GI_ID = 100
"""Slices name no GPU instance ids, so these are ours. Those of a driver are below 20, so none is taken for another."""

_MEMORY_SLICE = re.compile(r"memory-?[sS]lice-?([0-9]{1,2})")
_NUMBER = re.compile(r"gpu-([0-9]{1,3})(?:-.*)?")
_SET = "-counter-set"

Key = tuple[str, str]
"""The pool of a device, and its name."""

Shared = tuple[str, str, str]
"""The pool, the counter set and the name of a counter."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A device listed by a slice: a GPU, or an instance of it with a profile."""

    node: str
    uuid: str  # of its GPU
    index: int  # of its GPU on the node
    profile: str = ""  # "": the whole GPU
    start: int = -1  # its first memory slice; -1: not stated
    lasting: bool = True  # it exists while no claim has it
    usable: bool = True
    draws: tuple[tuple[Shared, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """Devices in the slices of the newest generation of each pool. `problems` are (node, reason)."""

    devices: Mapping[Key, Listed] = field(default_factory=dict)
    refused: Mapping[Key, str] = field(default_factory=dict)  # impossible devices, with the reason
    counters: Mapping[Shared, float] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()
    kinds: frozenset[tuple[str, bool]] = frozenset()  # profiles, and True if their instances last
    placed: frozenset[str] = frozenset()  # profiles of instances that do not last, with stated slices


@dataclass(frozen=True, slots=True)
class Boards:
    """The GPUs of each node, and the entity of each existing device: `UUID`, or `UUID/GPU instance id`.

    `unsound`: devices held by claims in contradiction. `problems` are (node, reason).
    """

    gpus: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    entities: Mapping[Key, str] = field(default_factory=dict)
    unsound: frozenset[Key] = frozenset()
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """Number of claims with a device; `used`: a pod uses one of them."""

    claims: int
    used: bool


# --- devices in slices ----------------------------------------------------------------------------


def read_slices(slices: Iterable[ResourceSlice]) -> Offer:
    """The devices of the newest generation of each pool. Impossible devices are left out and named."""
    current, problems = _newest(slices)
    counters = {
        (each.spec.pool.name, found.name, name): quantity.parse(counter.value) or 0.0
        for each in current
        for found in each.spec.shared_counters or ()
        for name, counter in (found.counters or {}).items()
    }
    listed = [(each, device) for each in current for device in each.spec.devices or ()]
    times = Counter((each.spec.pool.name, device.name) for each, device in listed)
    devices: dict[Key, Listed] = {}
    refused: dict[Key, str] = {}
    products: dict[str, str] = {}
    bad: dict[str, list[str]] = defaultdict(list)
    whole = _Parents()
    for kind in ("gpu", "mig"):
        for each, device in listed:
            if str(_attribute(device, "type") or "gpu") != kind:
                continue
            key = (each.spec.pool.name, device.name)
            made = _gpu(each, device, counters) if kind == "gpu" else _instance(each, device, counters, whole, products)
            made = "the pool lists it twice" if times[key] > 1 else made
            if isinstance(made, str):
                if key in refused:
                    continue
                refused[key] = made
                bad[each.spec.node_name or ""].append(f"{device.name}: {made}")
                continue
            devices[key] = made
            if kind == "gpu":
                whole.see(key, made)
                products[made.uuid] = str(_attribute(device, "productName") or "")
    for node, reasons in bad.items():
        many = f"{len(reasons)} of its devices do" if len(reasons) > 1 else "one of its devices does"
        problems.append((node, f"{many} not count; {reasons[0]}"))
    kinds = frozenset((each.profile, each.lasting) for each in devices.values() if each.profile)
    placed = frozenset(each.profile for each in devices.values() if not each.lasting and each.start >= 0)
    return Offer(devices, refused, counters, tuple(problems), kinds, placed)


def _newest(slices: Iterable[ResourceSlice]) -> tuple[list[ResourceSlice], list[tuple[str, str]]]:
    """The slices of the newest generation of each pool, and a problem for each pool without all its slices."""
    found = [each for each in slices if each.spec.driver == DRIVER and each.spec.node_name]
    newest: dict[str, int] = {}
    for each in found:
        newest[each.spec.pool.name] = max(newest.get(each.spec.pool.name, 0), each.spec.pool.generation)
    current = [each for each in found if each.spec.pool.generation == newest[each.spec.pool.name]]
    there = Counter(each.spec.pool.name for each in current)
    missing = {
        (each.spec.node_name or "", pool.name): (there[pool.name], pool.resource_slice_count)
        for each in current
        for pool in (each.spec.pool,)
        if there[pool.name] < pool.resource_slice_count
    }
    problems = [
        (node, f"pool {pool} has {have} of {whole} slices; the devices of the others are missing")
        for (node, pool), (have, whole) in missing.items()
    ]
    return sorted(current, key=lambda each: (each.spec.node_name or "", each.metadata.name)), problems


class _Parents:
    """Whole GPUs by the facts stated of their instances."""

    def __init__(self) -> None:
        self._by_uuid: dict[str, Listed] = {}
        self._by_set: dict[Key, Listed] = {}
        self._by_name: dict[Key, Listed] = {}

    def see(self, key: Key, gpu: Listed) -> None:
        """A whole GPU."""
        self._by_uuid[gpu.uuid] = gpu
        self._by_name[gpu.node, key[1]] = gpu
        self._by_set |= {(pool, name): gpu for (pool, name, _), _ in gpu.draws}

    def find(self, node: str, pool: str, device: Device) -> tuple[str, int] | None:
        """UUID and number of the GPU of an instance: by its UUID, else by the counters drawn on by both."""
        uuid = _attribute(device, "parentUUID")
        if uuid is not None:
            known = self._by_uuid.get(str(uuid))
            return str(uuid), known.index if known is not None else _number(device)
        for each in device.consumes_counters or ():
            gpu = self._by_set.get((pool, each.counter_set))
            gpu = gpu or self._by_name.get((node, each.counter_set.removesuffix(_SET)))
            if gpu is not None:
                return gpu.uuid, gpu.index
        return None


def _gpu(each: ResourceSlice, device: Device, counters: Mapping[Shared, float]) -> Listed | str:
    uuid = _attribute(device, "uuid")
    if uuid is None:
        return "it has no attribute uuid"
    draws = _draws(each.spec.pool.name, device, counters)
    if isinstance(draws, str):
        return draws
    index = _attribute(device, "index")
    number = index if isinstance(index, int) else _number(device)
    return Listed(each.spec.node_name or "", str(uuid), number, usable=not _tainted(device), draws=draws)


def _instance(
    each: ResourceSlice,
    device: Device,
    counters: Mapping[Shared, float],
    whole: _Parents,
    products: Mapping[str, str],
) -> Listed | str:
    """A MIG device, or the reason against it."""
    node, pool = each.spec.node_name or "", each.spec.pool.name
    text = _attribute(device, "profile")
    name = find_profile_name(str(text or ""))
    if name is None:
        return f"its profile {text!r} is no MIG profile"
    parent = whole.find(node, pool, device)
    if parent is None:
        return "it names no GPU: it has no attribute parentUUID, and no whole GPU draws on its counters"
    draws = _draws(pool, device, counters)
    if isinstance(draws, str):
        return draws
    slices = _memory_slices(device)
    if slices and slices != list(range(slices[0], slices[0] + len(slices))):
        return f"its memory slices {', '.join(map(str, slices))} are not side by side"
    profile, start = str(name), slices[0] if slices else -1
    model = find_gpu_model(str(_attribute(device, "productName") or products.get(parent[0], "")))
    if model is not None:
        facts = find_profile(model, profile)
        if facts is None:
            return f"{profile} is no profile of {model.name}"
        if slices and (start not in facts.starts or len(slices) != facts.memory_slices):
            return f"memory slices {start} to {slices[-1]} are no place of {profile} on {model.name}"
        profile = facts.name
    usable, lasting = not _tainted(device), not device.consumes_counters
    return Listed(node, *parent, profile, start, lasting=lasting, usable=usable, draws=draws)


def _draws(pool: str, device: Device, counters: Mapping[Shared, float]) -> tuple[tuple[Shared, float], ...] | str:
    """Draws of a device on the counters of its pool, or the reason against them."""
    draws = []
    for each in device.consumes_counters or ():
        for name, counter in (each.counters or {}).items():
            amount, shared = quantity.parse(counter.value), (pool, each.counter_set, name)
            if amount is None:
                return f"it draws {shown(counter.value)} of counter {name}, which is no quantity"
            if amount > counters.get(shared, 0.0):
                have = f"{counters[shared]:g}" if shared in counters else "none"
                return f"it draws {amount:g} of counter {name} of {each.counter_set}, which has {have}"
            draws.append((shared, amount))
    return tuple(draws)


def _memory_slices(device: Device) -> list[int]:
    """Memory slices of a device, by its counters, else by its capacity."""
    names = [
        name
        for each in device.consumes_counters or ()
        for name, counter in (each.counters or {}).items()
        if quantity.parse(counter.value)
    ]
    found = (_MEMORY_SLICE.fullmatch(name.rpartition("/")[2]) for name in names or device.capacity or ())
    return sorted(int(match[1]) for match in found if match is not None)


def _number(device: Device) -> int:
    """The number of a GPU by the driver's name of the device, `gpu-0` or `gpu-0-mig-...`; 0 for another name."""
    match = _NUMBER.fullmatch(device.name)
    return int(match[1]) if match is not None else 0


def _tainted(device: Device) -> bool:
    return any(each.effect in {"NoSchedule", "NoExecute"} for each in device.taints or ())


def _attribute(device: Device, name: str) -> Any:
    """The value of an attribute, with or without the driver's domain; None: absent."""
    attributes = device.attributes or {}
    for key in (name, f"{DRIVER}/{name}"):
        for value in attributes.get(key, {}).values():
            return value
    return None


# --- existing devices -----------------------------------------------------------------------------


def boards_of(offer: Offer, taken: Mapping[Key, Taken]) -> Boards:
    """The GPUs of each node, by number, with the existing instances.

    A device that a claim has and no pod uses is neither free nor held: an instance is left out, and a GPU is not
    usable. Nor is a GPU with devices taken in contradiction.
    """
    unsound, problems = _contradictions(offer, taken)
    left = _left(offer, taken)
    on_gpu: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key, each in offer.devices.items():
        on_gpu[each.node, each.uuid].append(key)
    nodes: dict[str, list[Gpu]] = defaultdict(list)
    entities: dict[Key, str] = {}
    for (node, uuid), keys in on_gpu.items():
        listed = {key: offer.devices[key] for key in keys}
        exists = [key for key, each in listed.items() if each.profile and (each.lasting or key in taken)]
        parts: list[Part] = []
        for key in sorted(exists, key=lambda key: (listed[key].start, key)):
            each, used = listed[key], {part.gi_id for part in parts}
            number = FIRST_OWN_GI_ID + each.start
            if each.start < 0 or number in used:  # a place not stated, or taken twice
                number = next(free for free in count(2 * FIRST_OWN_GI_ID) if free not in used)
            if taken[key].used if key in taken else each.usable:
                parts.append(Part(number, each.profile, each.start))
                entities[key] = f"{uuid}/{number}"
        usable = not unsound & listed.keys()
        for key, each in listed.items():
            if not each.profile:
                entities[key] = uuid
                usable &= taken[key].used if key in taken else each.usable
        on_demand = _on_demand(listed, taken, left if usable else None)
        nodes[node].append(Gpu(uuid, listed[keys[0]].index, bool(exists), tuple(parts), usable, on_demand))
    gpus = {node: tuple(sorted(found, key=lambda each: (each.index, each.uuid))) for node, found in nodes.items()}
    return Boards(gpus, entities, unsound, problems)


def _left(offer: Offer, taken: Mapping[Key, Taken]) -> Mapping[Shared, float] | None:
    """Counters left over by claims; None if a claim has a device with unknown draws."""
    if not taken.keys() <= offer.devices.keys():
        return None
    left = dict(offer.counters)
    for key in taken:
        for shared, amount in offer.devices[key].draws:
            left[shared] = left.get(shared, 0.0) - amount
    return left


def _on_demand(
    listed: Mapping[Key, Listed], taken: Mapping[Key, Taken], left: Mapping[Shared, float] | None
) -> tuple[tuple[str, int], ...] | None:
    """Places for instances on demand on a GPU; empty if that is in doubt. None: its instances last."""
    if all(each.lasting for each in listed.values() if each.profile):
        return None
    mixed = any(each.profile and each.lasting for each in listed.values())
    if left is None or mixed or any(key in taken and not each.profile for key, each in listed.items()):
        return ()
    return tuple(
        (each.profile, each.start)
        for key, each in listed.items()
        if each.profile
        and key not in taken
        and each.usable
        and each.start >= 0
        and all(amount <= left.get(shared, 0.0) for shared, amount in each.draws)
    )


def _contradictions(offer: Offer, taken: Mapping[Key, Taken]) -> tuple[frozenset[Key], tuple[tuple[str, str], ...]]:
    """Devices of several claims, and devices drawing more on a counter than it has."""
    drawn: dict[Shared, float] = defaultdict(float)
    users: dict[Shared, list[Key]] = defaultdict(list)
    unsound: set[Key] = set()
    problems: list[tuple[str, str]] = []
    for key in sorted(taken.keys() & offer.devices.keys()):
        each = offer.devices[key]
        if taken[key].claims > 1:
            unsound.add(key)
            problems.append((each.node, f"{taken[key].claims} claims have its device {key[1]}; its GPU gets no work"))
        for shared, amount in each.draws:
            drawn[shared] += amount
            users[shared].append(key)
    for shared, amount in sorted(drawn.items()):
        if amount > offer.counters.get(shared, 0.0) and not unsound.issuperset(users[shared]):
            unsound.update(users[shared])
            names = " and ".join(key[1] for key in users[shared])
            reason = (
                f"claims have {names}, which share counter {shared[2]}: together they exceed it; their GPU gets no work"
            )
            problems.append((offer.devices[users[shared][0]].node, reason))
    return frozenset(unsound), tuple(problems)
