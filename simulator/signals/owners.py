"""When the owner of interactive work is away: absences of half an hour and more, between sessions.

Fitted to the GPUs of 96 pods (data set gentd26, duty cycle at 57 s, up to 22.8 h): 10,983 stretches with a duty cycle
of at most 1 %, 88 of them cut off by the end of the pod. The maximum-likelihood fit under censoring is a mixture:

    0.475  log-normal, median 69 s, sigma 0.29     the resolution of the data: one sample without work
    0.522  log-normal, median 293 s, sigma 1.06    pauses and absences
    0.0036 never ends while the pod exists         forgotten

Stretches of work between them have a mean of 179 s. Gaps shorter than `ABSENCE_S` are part of a session (the pattern of
`Archetype.INTERMITTENT`). So a session is a geometric number of cycles of work and short gap, and an absence has the
tail of the mixture above `ABSENCE_S`. `python scripts/fit_telemetry.py` prints the fit again.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from math import exp, inf, log
from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()

ABSENCE_S = 1800.0
"""A gap of at least this length is an absence: the longest window of telemetry."""
PAUSE_SHARE, PAUSE_MEDIAN_S, PAUSE_SIGMA = 0.522, 293.0, 1.064
FORGOTTEN_SHARE = 0.0036
CYCLE_S = 483.0
"""Mean length of a stretch of work (179 s) and the gap after it (304 s, forgotten ones left out)."""

_SHORT = _NORMAL.cdf(log(ABSENCE_S / PAUSE_MEDIAN_S) / PAUSE_SIGMA)
_LONG_SHARE = PAUSE_SHARE * (1.0 - _SHORT)
FORGOTTEN_RATIO = FORGOTTEN_SHARE / (FORGOTTEN_SHARE + _LONG_SHARE)
"""Absences that never end, of all absences."""
SESSION_S = CYCLE_S / (FORGOTTEN_SHARE + _LONG_SHARE)
"""Mean time between two absences."""
_MOST = 4096


@lru_cache(maxsize=1 << 14)
def absences(seed: int, job_id: str, until_s: float) -> tuple[tuple[float, float], ...]:
    """(begin, end) of each absence within `until_s` of the first start of a job; the end is inf where it never returns.

    A function of the seed and the id alone, so every policy sees the same owner.
    """
    digest = blake2b(f"owner/{seed}/{job_id}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    found: list[tuple[float, float]] = []
    at_s = 0.0
    while len(found) < _MOST:
        at_s += float(round(rng.exponential(SESSION_S)))
        if at_s >= until_s:
            break
        forgotten, level = rng.random(2).tolist()
        if forgotten < FORGOTTEN_RATIO:
            found.append((at_s, inf))
            break
        length_s = float(round(absence_s(level)))
        found.append((at_s, at_s + length_s))
        at_s += length_s
    return tuple(found)


def absence_s(level: float) -> float:
    """Quantile of the length of an absence that ends: the log-normal tail above `ABSENCE_S`."""
    return exp(log(PAUSE_MEDIAN_S) + PAUSE_SIGMA * _NORMAL.inv_cdf(_SHORT + (1.0 - _SHORT) * min(level, 1.0 - 1e-12)))
