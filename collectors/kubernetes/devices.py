"""The GPUs of a node with their UUIDs and MIG instances, from a source of names, else as counted.

Kubernetes counts GPUs and does not name them. Drivers for dynamic resource allocation name them in ResourceSlices, and
GPU exporters in their labels. Without either, a GPU is named by its node and number, and the instances are laid out as
the MIG rules allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import find_gpu_model, find_profile
from collectors.attribution import Sightings
from collectors.kubernetes.nodes import NodeFacts

FIRST_GI_ID = 7


@dataclass(frozen=True, slots=True)
class Part:
    """A MIG instance. `start` is its first memory slice; -1: unknown."""

    gi_id: int
    profile: str
    start: int = -1


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. `parts` are its MIG instances; `mig` is true in MIG mode, also without instances.

    An unusable one gets no work: its driver bars work from it, or an unseen user holds it. `on_demand`: for instances
    with the lifetime of their claim, the places (profile, first memory slice) open to a new one. None: instances last.
    `seen`: the source for the GPUs of its node shows it now. True without such a source.
    `model`: its name by its driver, "" for unknown.
    """

    uuid: str
    index: int
    mig: bool = False
    parts: tuple[Part, ...] = ()
    usable: bool = True
    on_demand: tuple[tuple[str, int], ...] | None = None
    seen: bool = True
    model: str = ""


@runtime_checkable
class Hardware(Protocol):
    """A source that sees the GPUs themselves, and the pods on them (a GPU exporter, a Prometheus)."""

    def sightings(self) -> Sightings:
        """The present sightings; the same object for the same answer."""
        ...


Problems = tuple[tuple[str, str], ...]


def counted(facts: NodeFacts) -> tuple[tuple[Gpu, ...], Problems]:
    """The GPUs of a node by number, as the autopilot left them; else whole ones first, then those in MIG mode with
    their instances laid out.

    Problems are (signal, reason).
    """
    model = find_gpu_model(facts.model)
    if facts.geometry and model is not None:
        places = [
            mig.fits(model, (), [name for name, count in cuts or () for _ in range(count)]) for cuts in facts.geometry
        ]
        if None not in places:
            return tuple(
                Gpu(facts.uuid(index), index, facts.geometry[index] is not None, _parts(each or ()))
                for index, each in enumerate(places)
            ), ()
    whole = facts.gpus - facts.cut
    layouts, problems = _lay_out(facts.model, facts.cut, facts.profiles)
    cuts = [Gpu(facts.uuid(whole + at), whole + at, mig=True, parts=each) for at, each in enumerate(layouts)]
    if problems:  # the GPUs of the instances not laid out are unknown
        cuts = [replace(gpu, usable=False) for gpu in cuts]
    names = facts.uuids or [f"{facts.name}:gpu{index}" for index in range(whole)]
    return (*(Gpu(names[index], index) for index in range(whole)), *cuts), problems


def joined(facts: NodeFacts, known: tuple[Gpu, ...], before: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs of a node with the names `known` from a source.

    `before`: its earlier GPUs, without those of another node now.

    Named ones keep their number. A missing one is the earlier one, else a counted one; both are not `seen`. If the node
    states fewer, seen and earlier ones count first.
    """
    were = {gpu.uuid: gpu for gpu in before if not gpu.uuid.startswith(f"{facts.name}:gpu")}
    if not known and (facts.by_claims or len(were) != facts.gpus or sum(gpu.mig for gpu in before) != facts.cut):
        return counted(facts)[0]
    order = sorted(known, key=lambda gpu: (not gpu.seen, gpu.uuid not in were))
    chosen = {gpu.uuid for gpu in order[: facts.gpus]}
    named = [gpu for gpu in known if gpu.uuid in chosen]
    if len(named) == facts.gpus:
        return tuple(replace(gpu, index=index) for index, gpu in enumerate(named))
    gone = [gpu for uuid, gpu in were.items() if uuid not in chosen][: facts.gpus - len(named)]
    slots: dict[int, Gpu] = {}
    late: list[Gpu] = []
    for gpu in [*named, *(replace(each, seen=False) for each in gone)]:
        index = were[gpu.uuid].index if gpu.uuid in were else -1
        if 0 <= index < facts.gpus and index not in slots:
            slots[index] = gpu
        else:
            late.append(gpu)
    late += _others(facts, [*slots.values(), *late])
    slots |= zip([index for index in range(facts.gpus) if index not in slots], late, strict=True)
    return tuple(replace(gpu, index=index) for index, gpu in sorted(slots.items()))


def _others(facts: NodeFacts, known: list[Gpu]) -> list[Gpu]:
    """Counted GPUs for the rest of a node beside `known`, with the remaining instances."""
    count = facts.gpus - len(known)
    left = Counter(dict(facts.profiles)) - Counter(part.profile for gpu in known for part in gpu.parts)
    cut = min(max(facts.cut - sum(gpu.mig for gpu in known), 0), count)
    rest = replace(facts, gpus=count, cut=cut, profiles=tuple(sorted(left.items())) if cut else (), geometry=())
    names = [f"{facts.name}:gpu{index}" for index in range(facts.gpus)]
    free = [name for name in names if name not in {gpu.uuid for gpu in known}]
    return [replace(gpu, uuid=free[-count + at], seen=False) for at, gpu in enumerate(counted(rest)[0])]


@lru_cache(maxsize=1024)
def _lay_out(
    model_name: str, cut: int, profiles: tuple[tuple[str, int], ...]
) -> tuple[tuple[tuple[Part, ...], ...], Problems]:
    """Instances on the GPUs in MIG mode: the same on each if the numbers allow it, else the widest first."""
    model = find_gpu_model(model_name)
    if not cut:
        return (), ()
    if model is None:
        problem = ("mig", f"the MIG profiles of {model_name} are not known; its instances do not count")
        return ((),) * cut, (problem,)
    if all(count % cut == 0 for _, count in profiles):
        each = mig.fits(model, (), [name for name, count in profiles for _ in range(count // cut)])
        if each is not None:
            return (_parts(each),) * cut, ()
    placed: list[list[mig.Placement]] = [[] for _ in range(cut)]
    wanted = [name for name, count in profiles for _ in range(count)]
    lost = 0
    for name in sorted(wanted, key=lambda name: -_slices(model, name)):
        for gpu in placed:
            found = mig.fits(model, gpu, [name])
            if found is not None:
                gpu.extend(found)
                break
        else:
            lost += 1
    problem = ("mig", f"{lost} of its MIG instances do not fit on its {cut} GPUs; they do not count")
    return tuple(_parts(gpu) for gpu in placed), (problem,) if lost else ()


def _slices(model: Any, name: str) -> int:
    profile = find_profile(model, name)
    return profile.memory_slices if profile is not None else 0


def _parts(placements: Iterable[mig.Placement]) -> tuple[Part, ...]:
    ordered = sorted(placements, key=lambda each: each.start)
    return tuple(Part(FIRST_GI_ID + number, each.profile, each.start) for number, each in enumerate(ordered))
