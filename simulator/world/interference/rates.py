"""The true rates of work that shares a GPU, over their rates alone: drawn from measured pairs, by mechanism.

No public table has H100s, or both SM activity and pairs, so the way from a measured pair to a simulated one is assumed:

- A job takes the place of a measured kind of training: the more SM-active or busy it is alone, the higher its place in
  the order of pressure, give or take `FAMILY` by program. Lighter work than the lightest kind presses in proportion.
- MPS: rate = 1 - the loss of the V100 table x 80 / SMs of the GPU (from P100 to V100 the mean loss falls as the SMs
  grow: 0.43 x 56 / 80 = 0.30, measured 0.31), in proportion to the time of the victim on the GPU. NVIDIA's device
  plugin also caps each client at 1/N of the threads: at most the speed of MISO's table on that fraction, even alone.
  Beside a client below normal priority the loss of a normal one halves, and that of the lower one grows by a quarter
  (Tally's 12 pairs with a service: p99 at most 5.8 times as long instead of 11.8, mean loss of training 0.153 instead
  of 0.127). NVIDIA calls priorities "hints, not guarantees".
- Time slicing: work waits for its slice while others are busy, 1 / (1 + busy others) of the speed; times the sum of
  the pair in the K80 table (0.94 to 1.23: a GPU that overlaps next to nothing), less 3 % for the switch, as far as
  both are busy.
- Every ordered pair of programs has an effect of its own on top, normal with `PAIR_SD`.

Rates are means over the phases of the work. More than two sharers multiply their effects under MPS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from math import prod
from statistics import NormalDist

import numpy as np

from autopilot.core.model.objects import Sharing
from simulator.world.interference.tables import pairs_of, slice_speeds

PAIR_SD = 0.08
FAMILY = 0.15
"""Half the width of the draw of a program's place among the kinds."""
LIGHTEST, HEAVIEST = 0.15, 0.85
"""SM activity of the first and the last kind."""
BUSY = 0.6
"""Part of the time on the GPU from which on a victim takes the whole loss."""
SWITCH = 0.97
SMS = {
    "P100": 56, "V100": 80, "T4": 40, "A10": 72, "A30": 56, "A100": 108, "L40": 142, "H20": 78, "H100": 132,
    "H200": 132, "B200": 148, "B300": 148,
}  # fmt: skip
"""Streaming multiprocessors by GPU model, the longest key in its name; others as an A100."""
STALLED = {Sharing.WHOLE: 0.0, Sharing.TIME_SLICING: 0.1, Sharing.MPS: 0.4}
"""Part of the lost progress during which the work holds SMs active, and waits for memory or cache [assumed]."""
_SLOWEST = 0.05
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Sharer:
    """Work on a GPU as it is alone: means over its phases. Absent or starting work has 0 for both ratios."""

    program: str
    level: float  # SM activity
    busy: float  # part of the time with a kernel on the GPU
    below: bool = False  # as an MPS client it is below normal priority

    @property
    def place(self) -> float:
        """Its place among the kinds, in [0, 1]."""
        spread = FAMILY * (2.0 * draw(f"family/{self.program}") - 1.0)
        return float(np.clip((self.level - LIGHTEST) / (HEAVIEST - LIGHTEST) + spread, 0.0, 1.0))


def rates_of(sharers: Sequence[Sharer], sharing: Sharing, replicas: int, gpu_model: str) -> list[float]:
    """The rate of each over its rate alone on the whole GPU."""
    if sharing is Sharing.TIME_SLICING:
        return _time_sliced(sharers)
    if sharing is Sharing.MPS:
        beside = [_beside(sharers, at, gpu_model) for at in range(len(sharers))]
        return [min(rate, slice_rate(each, 1.0 / replicas)) for each, rate in zip(sharers, beside, strict=True)]
    return [1.0] * len(sharers)


def slice_rate(sharer: Sharer, fraction: float) -> float:
    """Speed on this fraction of a GPU, of a MIG slice or of an MPS client with that part of the threads (MISO)."""
    fractions, speeds = slice_speeds()
    place = float(np.clip(sharer.busy + FAMILY * (2.0 * draw(f"slice/{sharer.program}") - 1.0), 0.0, 1.0))
    known = [float(np.interp(fraction, fractions, row)) for row in speeds]
    measured = float(np.interp(place, np.linspace(0.2, 1.0, len(known)), known))
    return 1.0 - (1.0 - measured) * min(1.0, sharer.busy / 0.2)  # rarely busy work rarely notices


def active_parts(sharers: Sequence[Sharer], rates: Sequence[float], sharing: Sharing) -> list[float]:
    """The SM activity of the GPU due to each; together at most 1."""
    parts = [each.level * rate ** (1.0 - STALLED[sharing]) for each, rate in zip(sharers, rates, strict=True)]
    return [part / max(sum(parts), 1.0) for part in parts]


def _beside(sharers: Sequence[Sharer], at: int, gpu_model: str) -> float:
    victim = sharers[at]
    kept = []
    for other, each in enumerate(sharers):
        if other != at:
            loss = _loss(victim, each) * 80.0 / _sms(gpu_model)
            loss *= 1.0 + 0.25 * (victim.below and not each.below) - 0.5 * (each.below and not victim.below)
            kept.append(1.0 - np.clip(loss + _own(victim, each) * min(1.0, 10.0 * loss), 0.0, 1.0))
    return max(prod(kept), _SLOWEST) if kept else 1.0


def _loss(victim: Sharer, other: Sharer) -> float:
    """The loss of the V100 table, in proportion to the presence of both on the GPU."""
    return _at(victim.place, other.place, "v100") * min(1.0, other.level / LIGHTEST) * min(1.0, victim.busy / BUSY)


@lru_cache(maxsize=1 << 14)
def _at(a: float, b: float, gpu: str) -> float:
    """The table between its kinds: of their losses for a V100, of their sums for a K80."""
    found = pairs_of(gpu)
    table = found.loss if gpu == "v100" else found.total
    x, y = a * (len(table) - 1), b * (len(table) - 1)
    i, j = min(int(x), len(table) - 2), min(int(y), len(table) - 2)
    top, low = ((1 - y + j) * table[row, j] + (y - j) * table[row, j + 1] for row in (i, i + 1))
    return float((1 - x + i) * top + (x - i) * low)


def _time_sliced(sharers: Sequence[Sharer]) -> list[float]:
    busy = [each.busy for each in sharers]
    speed = [1.0] * len(sharers)
    wants = busy
    for _ in range(6):  # work that waits for its slice wants the GPU for longer
        speed = [_speed([*wants[:at], *wants[at + 1 :]]) for at in range(len(sharers))]
        stretched = [(own / rate, 1.0 - own + own / rate) for own, rate in zip(busy, speed, strict=True)]
        wants = [min(on / total, 1.0) for on, total in stretched]
    rates = []
    for at, each in enumerate(sharers):
        rate = 1.0 / (1.0 - busy[at] + busy[at] / speed[at])
        for other, beside in enumerate(sharers):
            if other != at:
                both = min(1.0, busy[at]) * min(1.0, busy[other])
                gain = float(np.clip(_at(each.place, beside.place, "k80"), 0.9, 1.25)) * SWITCH
                rate *= 1.0 + both * (gain - 1.0 + _own(each, beside))
        rates.append(float(np.clip(rate, _SLOWEST, 1.0)))
    return rates


def _speed(others: Sequence[float]) -> float:
    """The mean part of the slices while each of the others wants the GPU with this probability, independently."""
    total = 0.0
    for present in product((0, 1), repeat=len(others)):
        chance = prod(want if on else 1.0 - want for want, on in zip(others, present, strict=True))
        total += chance / (1 + sum(present))
    return total


def _own(victim: Sharer, other: Sharer) -> float:
    """The effect of this ordered pair of programs alone."""
    return PAIR_SD * _NORMAL.inv_cdf(min(max(draw(f"pair/{victim.program}/{other.program}"), 1e-6), 1.0 - 1e-6))


@lru_cache(maxsize=1 << 16)
def draw(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") * 2.0**-64


def _sms(gpu_model: str) -> int:
    keys = [key for key in SMS if key in gpu_model.upper()]
    return SMS[max(keys, key=len)] if keys else SMS["A100"]
