"""What jobs do and hold on their GPUs when they are alone: drawn by program, the same under every policy.

A program is the work of one user with one name and one image. Work without a stated image is a program of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from autopilot.core.model.snapshot import SLO_CLASS_NAMES, SloClass
from simulator.signals.behaviours import BEHAVIOURS, F32, I8, Archetype, board_of, draw_jobs, effective_level
from simulator.signals.noise import JOB, as_counter, mixed, stream_key, uniform
from simulator.world.interference.rates import Sharer, draw
from simulator.world.work import Jobs

RUN_SPREAD = 0.1
"""Runs of one program differ by at most this in their level, uniformly [assumed]."""
RESERVED_RATIO = 0.013
"""Memory of a board that no work can have; assumed, as in telemetry."""


def program_of(jobs: Jobs, job: int) -> str:
    """The name under which the behaviour of a job is drawn: its program if it states an image, else its id."""
    if not jobs.image[job]:
        return jobs.id[job]
    tenant = jobs.tenants[jobs.tenant[job]]
    return "/".join((tenant, jobs.user[job], jobs.name[job], jobs.image[job]))


def behaviours_of(seed: int, jobs: Jobs, first: int = 0) -> tuple[I8, F32]:
    """(archetype, level of SM activity) of each job from row `first` on: the same under every policy."""
    classes = [SLO_CLASS_NAMES[code] for code in jobs.slo_class[first:]]
    keys = [program_of(jobs, job) for job in range(first, len(jobs))]
    archetype, level = draw_jobs(seed, keys, jobs.kind[first:], classes, jobs.name[first:])
    for row, job in enumerate(range(first, len(jobs))):
        if jobs.image[job]:
            spread = 1.0 + RUN_SPREAD * (2.0 * draw(f"run/{seed}/{jobs.id[job]}") - 1.0)
            level[row] = min(level[row] * spread, 1.0)
    return archetype, level


def footprint_mib(seed: int, jobs: Jobs, job: int, archetype: int, gpu_model: str) -> float:
    """Memory that a job holds on each of its GPUs: as it states, else by its behaviour and its program."""
    if jobs.peak_memory_gib[job] == jobs.peak_memory_gib[job]:
        return float(jobs.peak_memory_gib[job] * 1024.0)
    if jobs.image[job]:
        share = draw(f"memory/{seed}/{program_of(jobs, job)}")
    else:  # as the telemetry draws it
        key = as_counter(np.array([job])) * JOB + stream_key(seed, "jobs")
        share = float(uniform(mixed(key))[0])
    low, high = BEHAVIOURS[Archetype(archetype)].memory_ratio
    return float((low + (high - low) * share) * usable_mib(gpu_model))


def usable_mib(gpu_model: str) -> float:
    """Memory of a GPU that work can have."""
    return board_of(gpu_model).memory_mib * (1.0 - RESERVED_RATIO)


def busy_ratio(archetype: int, level: float) -> float:
    """Mean part of the time with a kernel on the GPU, over the phases of the behaviour."""
    each = BEHAVIOURS[Archetype(archetype)]
    high = min(level * each.gain, 1.0)
    low = max(level - each.duty * high, 0.0) / (1.0 - each.duty)
    on, off = (min(each.busy_base + 1.0 - (1.0 - sm) ** each.busy_exponent, 1.0) for sm in (high, low))
    return float(each.duty * on + (1.0 - each.duty) * off)


class DrawnLoads:
    """The loads of the jobs of one run (`simulator.world.sharing.Loads`).

    Pods of batch work declare themselves below normal priority for MPS [assumed]: they yield to other classes.
    """

    def __init__(self, seed: int, jobs: Jobs, slow: Mapping[int, float] = MappingProxyType({})) -> None:
        """Drawn when they are asked for; jobs may be added later. `slow`: see `Loads`."""
        self._seed, self._jobs, self.slow = seed, jobs, slow
        self._archetype, self._level = np.empty(0, np.int8), np.empty(0, np.float32)

    def sharer(self, job: int) -> Sharer:
        """Its activity while it works."""
        archetype = self._drawn(job)
        level = float(effective_level(self._archetype[job : job + 1], self._level[job : job + 1])[0])
        below = self._jobs.slo_class[job] == SloClass.BATCH
        return Sharer(f"{self._seed}/{program_of(self._jobs, job)}", level, busy_ratio(archetype, level), below)

    def footprint_mib(self, job: int, gpu_model: str) -> float:
        """The memory that it holds on each of its GPUs."""
        return footprint_mib(self._seed, self._jobs, job, self._drawn(job), gpu_model)

    def memory_mib(self, gpu_model: str) -> float:
        """The usable memory of a GPU."""
        return usable_mib(gpu_model)

    def _drawn(self, job: int) -> int:
        known = len(self._archetype)
        if job >= known:
            archetype, level = behaviours_of(self._seed, self._jobs, known)
            self._archetype = np.concatenate([self._archetype, archetype])
            self._level = np.concatenate([self._level, level])
        return int(self._archetype[job])
