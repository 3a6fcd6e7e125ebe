"""The two kinds of MIG cases: what still fits on one GPU, and the plan to cut GPUs anew."""

from __future__ import annotations

from collections import Counter

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import GpuModel, Placement
from autopilot.core.model.errors import InputError
from tests.conformance.cases import Case, MigGpu, Profiles
from tests.conformance.compare import Difference
from tests.conformance.recut import CutGpu, Instance, MigRequest, Replan, check_gpu, replan


def compare_fit(case: Case) -> list[Difference]:
    """`mig_fit`: do all the wanted profiles fit beside the occupied ones?"""
    if case.model is None:
        raise InputError("model: a mig_fit case names its GPU model")
    model = mig.gpu_model(case.model)
    occupied = [(_name(model, profile), start) for profile, start in case.occupied]
    places = mig.fits(model, occupied, [_name(model, profile) for profile in case.want])
    if places is not None and not mig.is_legal(model, [*occupied, *places]):
        return [("a legal set of instances", f"{places} beside {occupied}")]
    if case.expect.fits is None or case.expect.fits == (places is not None):
        return []
    return [(f"fits: {case.expect.fits}", f"fits: {places is not None}")]


def compare_replan(case: Case) -> list[Difference]:
    """`mig_replan`: which requests get their instances, and which GPUs are cut anew for that."""
    gpus = [_gpu(case, gpu) for gpu in case.gpus]
    for gpu in gpus:
        check_gpu(gpu)
    models = [mig.gpu_model(gpu.model) for gpu in case.gpus]
    asked = [MigRequest(scenario.name, _named(models, scenario.profiles)) for scenario in case.requests]
    answer = replan(gpus, asked)
    expect, indices = case.expect, sorted(cut.index for cut in answer.changed)
    pairs: list[tuple[str, object, object]] = [
        ("placed", None if expect.placed is None else sorted(expect.placed), sorted(answer.placed)),
        ("unplaced", None if expect.unplaced is None else sorted(expect.unplaced), sorted(answer.unplaced)),
        ("placed_count", expect.placed_count, len(answer.placed)),
        ("unplaced_count", expect.unplaced_count, len(answer.unplaced)),
        ("changed_gpus", None if expect.changed_gpus is None else sorted(expect.changed_gpus), indices),
        ("changed_gpus_count", expect.changed_gpus_count, len(indices)),
        ("used_kept", expect.used_kept, _used_kept(gpus, answer)),
    ]
    unsound = _unsound(gpus, asked, answer)
    return [
        *(("a plan that keeps its word", problem) for problem in unsound),
        *((f"{what} {wanted}", f"{what} {got}") for what, wanted, got in pairs if wanted not in (None, got)),
    ]


def _name(model: GpuModel, profile: str) -> str:
    """A profile as the facts of a model write it; one that the model lacks stays as it is."""
    found = mig.find_profile(model, profile)
    return found.name if found else profile


def _named(models: list[GpuModel], profiles: Profiles) -> Counter[str]:
    """A request in the words of the first model that knows each profile."""
    counts = Counter[str]()
    for profile, count in profiles.items():
        names = [name.name for model in models if (name := mig.find_profile(model, profile))]
        counts[names[0] if names else profile] += count
    return counts


def _gpu(case: Case, gpu: MigGpu) -> CutGpu:
    """One GPU as the rules read it, with the places of its instances where the case states them."""
    model = mig.gpu_model(gpu.model)
    used, free = _named([model], gpu.used), _named([model], gpu.free)
    stated = case.placements.get(str(gpu.index))
    if stated is None:
        unknown = [tuple[Instance, ...]((name, None) for name in part.elements()) for part in (used, free)]
        return CutGpu(gpu.node, gpu.index, gpu.model, unknown[0], unknown[1])
    if sum(other.index == gpu.index for other in case.gpus) > 1:
        raise InputError(f"placements.{gpu.index}: several GPUs have this index")
    places = [tuple((_name(model, profile), start) for profile, start in part) for part in (stated.used, stated.free)]
    for what, counts, part in (("used", used, places[0]), ("free", free, places[1])):
        if Counter(profile for profile, _ in part) != +counts:
            raise InputError(f"placements.{gpu.index}.{what}: differs from gpus.{what}, {dict(counts)}")
    return CutGpu(gpu.node, gpu.index, gpu.model, places[0], places[1])


def _used_kept(gpus: list[CutGpu], answer: Replan) -> bool:
    """True when every used instance is still there, and where it was as far as that is known."""
    cuts = {(cut.node, cut.index): cut for cut in answer.changed}
    for gpu in gpus:
        cut = cuts.get((gpu.node, gpu.index))
        if cut is None:
            continue
        known = Counter(Placement(name, start) for name, start in gpu.used if start is not None)
        same = Counter(place.profile for place in cut.used) == Counter(name for name, _ in gpu.used)
        if not (same and known <= Counter(cut.used)):
            return False
    return True


def _unsound(gpus: list[CutGpu], asked: list[MigRequest], answer: Replan) -> list[str]:
    """What the plan promises and does not hold: legal geometries, and instances for all that is placed."""
    cuts = {(cut.node, cut.index): cut for cut in answer.changed}
    problems = []
    free: dict[str, Counter[str]] = {}
    for gpu in gpus:
        cut = cuts.get((gpu.node, gpu.index))
        there = [name for name, _ in gpu.free] if cut is None else [place.profile for place in cut.free]
        free.setdefault(gpu.node, Counter()).update(there)
        reason = None if cut is None else mig.why_illegal(gpu.model, [*cut.used, *cut.free])
        if reason:
            problems.append(f"GPU {gpu.index} of {gpu.node} becomes illegal: {reason}")
    for request in asked:
        if request.name in answer.placed and any(request.profiles.values()):
            mine = free.get(answer.nodes[request.name], Counter())
            if not Counter(request.profiles) <= mine:
                problems.append(f"{request.name} finds no instances on {answer.nodes[request.name]}")
            mine.subtract(request.profiles)
    return problems
