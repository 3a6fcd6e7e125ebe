"""Lone profiles: what each kind of work does, and how fast, on a GPU that it has to itself.

All work is looked at once in `LOOK_S`, at multiples of it, over a window of the same length; ticks in between only note
which shared GPUs have several holders. Only a GPU is learned from whose only holder ran on it during all of the window,
known to hold that GPU, with fresh telemetry that nothing speaks against: a profiling counter of a shared GPU is that of
the device, copied to each sharer (study of sharing, section 4). The GPU is whole, or time-sliced without a second
holder since before the window: alone there, work has all of it, while a client of MPS has a part of the threads at
most. A signal without a value leaves its part of the profile as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import floor, inf, isnan, nan, sqrt

import numpy as np

from autopilot.core.hardware.dcgm import Quality
from autopilot.core.hardware.idle_power import limit_w
from autopilot.core.intake.sight import fresh_samples
from autopilot.core.intake.usage.contradiction import contradicted
from autopilot.core.intake.usage.parts import parts_of, plausible
from autopilot.core.intake.usage.plausibility import doubts
from autopilot.core.model.capability import Tick
from autopilot.core.model.kinds import gpu_models, kind_of, owner_of_kind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.objects import Sharing
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, Bools, ClusterSnapshot, State
from autopilot.core.sharing.colocation import OLDEST_S

LOOK_S = 300.0
"""Time between two looks, and the window of each: the middle one of the telemetry."""

REMEMBERED_S = 1.44 * DAY_S
"""Observed time over which the means are taken: evidence halves with each day observed (1 day / ln 2)."""

WIDEST_GPUS = 4
"""Work on more GPUs does not share (issue: up to four GPUs of one node), so nothing is kept of it."""

MOST_PROFILES = 2000
MOST_OF_OWNER = 64
"""Profiles kept in all, and of one tenant's user: names that a generator makes push out names of their own owner only.
The ones seen least recently go first, those observed shortest among them.
"""

RATIOS = ("sm_ratio", "dram_ratio", "duty_ratio", "power_ratio")


@dataclass(frozen=True, slots=True)
class Seen:
    """One kind of work in one look: means over the GPUs that it has alone, NaN where none has the signal."""

    gpu_model: str
    kind: str
    peak_mib: float
    ratios: Mapping[str, float]
    steps_hz: float  # mean over the work whose GPUs are all alone
    steps_spread_ratio: float  # standard deviation over it, of the mean


def remember_profiles(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with what this observation shows of work alone."""
    known = learned(memory.profiles, tick.observation.snapshot, tick.now_s, tick.policy)
    return memory if known is memory.profiles else replace(memory, profiles=known)


def learned(known: ProfilesMemory, snapshot: ClusterSnapshot, now_s: float, policy: Policy) -> ProfilesMemory:
    """The profiles after a look at `now_s`; the same object where it is too early for one."""
    several_s = seen_several(known.several_s, snapshot, now_s)
    if several_s != known.several_s:
        known = replace(known, several_s=several_s)
    grid_s = floor(now_s / LOOK_S) * LOOK_S
    if grid_s <= known.look_s or LOOK_S not in snapshot.telemetry.windows_s:
        return known
    profiles = {model: dict(kinds) for model, kinds in known.profiles.items()}
    for seen in seen_alone(snapshot, now_s, policy, known):
        kinds = profiles.setdefault(seen.gpu_model, {})
        kinds[seen.kind] = _with(kinds.get(seen.kind), seen, now_s)
    return ProfilesMemory(_bounded(profiles, now_s), grid_s, known.several_s)


def seen_several(known: Mapping[str, float], snapshot: ClusterSnapshot, now_s: float) -> Mapping[str, float]:
    """When each shared GPU had several holders last (`ProfilesMemory.several_s`), after this view."""
    shared = snapshot.nodes.replicas[snapshot.gpus.node] > 1
    if not known and not shared.any():
        return known
    holders = np.bincount(snapshot.placements.gpu, minlength=len(shared))
    now = {str(uuid) for uuid in snapshot.gpus.uuid[shared & (holders > 1)]}
    kept = {uuid: min(at_s, now_s) for uuid, at_s in known.items() if now_s - min(at_s, now_s) <= 2.0 * LOOK_S}
    return dict(sorted((kept | dict.fromkeys(now, inf)).items()))


def seen_alone(snapshot: ClusterSnapshot, now_s: float, policy: Policy, known: ProfilesMemory) -> tuple[Seen, ...]:
    """What the window of a look shows of each kind of work alone, in the order of models and kinds."""
    telemetry, held = snapshot.telemetry, snapshot.placements
    alone = alone_mask(snapshot, now_s, known) & trusted_mask(snapshot, policy)[held.gpu]
    rows = np.flatnonzero(alone)
    if not len(rows):
        return ()
    at, gpu = telemetry.windows_s.index(LOOK_S), held.gpu[rows]
    models = gpu_models(snapshot)[gpu]
    values = {
        "sm_ratio": np.where(
            telemetry.quality[gpu] == Quality.SM_ACTIVE, _known("sm_active_ratio", snapshot, at, gpu), np.nan
        ),
        "dram_ratio": _known("dram_active_ratio", snapshot, at, gpu),
        "duty_ratio": _known("duty_ratio", snapshot, at, gpu),
        "power_ratio": _known("power_w", snapshot, at, gpu) / np.array([limit_w(str(model)) for model in models]),
    }
    paces = snapshot.workloads.steps_per_s.copy()
    paces[held.workload[~alone]] = np.nan
    peak_mib = _known("fb_used_mib", snapshot, at, gpu, highest=True)
    measured = ~np.isnan(peak_mib) & ~(np.isnan(values["sm_ratio"]) & np.isnan(values["duty_ratio"]))
    kinds = {row: kind_of(snapshot, row) for row in set(held.workload[rows[measured]].tolist())}
    keys = [
        (str(models[each]), kinds[int(held.workload[rows[each]])], each) for each in np.flatnonzero(measured).tolist()
    ]
    found = []
    for (model, kind), group in groupby(sorted(keys), key=lambda key: key[:2]):
        mine = np.array([each for _, _, each in group])
        ratios = {name: _mean(column[mine]) for name, column in values.items()}
        pace = paces[np.unique(held.workload[rows[mine]])]
        found.append(Seen(model, kind, float(peak_mib[mine].max()), ratios, *_mean_pace(pace[pace > 0.0])))
    return tuple(found)


def alone_mask(snapshot: ClusterSnapshot, now_s: float, known: ProfilesMemory) -> Bools:
    """Placements on a GPU whose holder requested it whole and ran on it, alone and surely, during a whole window. Shape
    [placements].

    A part, an instance, a GPU that is assumed, that is given up or whose node is shared by MPS is none of them, nor is
    a time-sliced GPU after a missed look.
    """
    held, work, nodes = snapshot.placements, snapshot.workloads, snapshot.nodes
    count = len(snapshot.gpus.uuid)
    surely = (held.instance < 0) & ~held.assumed & ~held.leaving & ~snapshot.gpus.mig[held.gpu]
    single = np.bincount(held.gpu, minlength=count)[held.gpu] == 1
    own = (held.milli == GPU_MILLI) & (nodes.replicas <= 1)[held.node]
    sliced = ((nodes.sharing == Sharing.TIME_SLICING) & (nodes.replicas > 1))[held.node]
    if now_s - known.look_s <= 2.0 * LOOK_S:  # else nobody noted who was there
        for at in np.flatnonzero(sliced & (work.gpu_milli[held.workload] == 0)).tolist():
            own[at] = str(snapshot.gpus.uuid[held.gpu[at]]) not in known.several_s
    runs = (work.state == State.RUNNING) & (now_s - work.start_s >= LOOK_S) & (work.gpus <= WIDEST_GPUS)
    return np.asarray(own & surely & single & runs[held.workload])


def trusted_mask(snapshot: ClusterSnapshot, policy: Policy) -> Bools:
    """GPUs whose telemetry is fresh, and in no doubt. Shape [gpus]."""
    telemetry, count = snapshot.telemetry, len(snapshot.gpus.uuid)
    trusted = np.zeros(count, np.bool_)
    if len(telemetry.age_s) < count:
        return trusted
    doubt = doubts(snapshot, parts_of(snapshot), contradicted(snapshot), policy.freshness.telemetry_s)
    fresh = fresh_samples(telemetry.age_s[:count], policy.freshness.telemetry_s, policy.clock.max_skew_s)
    return np.asarray(fresh & (doubt[:count] == 0))


def _known(signal: str, snapshot: ClusterSnapshot, at: int, gpu: I32, *, highest: bool = False) -> F64:
    """Means (or highest samples) of a signal of these GPUs in one window; NaN where it is not possible. Shape [gpu]."""
    table = snapshot.telemetry
    column = (table.maxima if highest else table.means)(signal)[at][gpu]
    return np.where(plausible(signal, column), column, np.nan).astype(np.float64)


def _mean(values: F64) -> float:
    known = values[~np.isnan(values)]
    return min(float(known.mean()), 1.0) if len(known) else float("nan")


def _mean_pace(known: F64) -> tuple[float, float]:
    if not len(known):
        return nan, nan
    mean = float(known.mean())
    return mean, float(known.std()) / mean


def _with(known: LoneProfile | None, seen: Seen, now_s: float) -> LoneProfile:
    """A profile with one look more. Means are kept to 1e-4: telemetry is not better."""
    if known is None or now_s - known.seen_s > OLDEST_S:
        ratios = {name: round(seen.ratios[name], 4) for name in RATIOS}
        return LoneProfile(seen.peak_mib, LOOK_S, now_s, **ratios, **_paces(None, seen, 1.0))
    alone_s = min(known.alone_s + LOOK_S, REMEMBERED_S)
    weight = LOOK_S / alone_s
    ratios = {}
    for name in RATIOS:
        old, new = getattr(known, name), seen.ratios[name]
        ratios[name] = old if isnan(new) else round(new if isnan(old) else old + weight * (new - old), 4)
    paces = _paces(known, seen, weight)
    return LoneProfile(max(known.peak_mib, seen.peak_mib), alone_s, now_s, **ratios, **paces)


def _paces(known: LoneProfile | None, seen: Seen, weight: float) -> dict[str, float]:
    """Mean pace and its spread with one look more: the exponentially weighted mean and variance."""
    if known is None or isnan(known.steps_hz):
        return _rounded(seen.steps_hz, seen.steps_spread_ratio)
    if isnan(seen.steps_hz):
        return _rounded(known.steps_hz, known.steps_spread_ratio)
    off = seen.steps_hz / known.steps_hz - 1.0
    variance = (1.0 - weight) * (known.steps_spread_ratio**2 + weight * off**2) + weight * seen.steps_spread_ratio**2
    return _rounded(known.steps_hz * (1.0 + weight * off), sqrt(variance))


def _rounded(pace: float, spread: float) -> dict[str, float]:
    return {"steps_hz": float(f"{pace:.4g}"), "steps_spread_ratio": round(spread, 4)}


def _bounded(profiles: Mapping[str, Mapping[str, LoneProfile]], now_s: float) -> dict[str, dict[str, LoneProfile]]:
    """The profiles that are kept: not too old, and the newest of each owner and in all."""
    every = [
        (model, kind, each)
        for model, kinds in profiles.items()
        for kind, each in kinds.items()
        if now_s - each.seen_s <= OLDEST_S
    ]
    every.sort(key=lambda row: (-row[2].seen_s, -row[2].alone_s, row[:2]))
    of_owner = Counter[str]()
    kept: dict[str, dict[str, LoneProfile]] = {}
    left = MOST_PROFILES
    for model, kind, each in every:
        owner = owner_of_kind(kind)
        of_owner[owner] += 1
        if of_owner[owner] <= MOST_OF_OWNER and left > 0:
            left -= 1
            kept.setdefault(model, {})[kind] = each
    return kept
