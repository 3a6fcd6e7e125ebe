"""Hazards of one job by age, counted again from the observations of a journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autopilot.core.model.units import format_duration
from models.hazard_index import Hazards
from models.hazards import BINS, EDGES_S, bins_of, index_per_s, lasting_ratio

HOUR_S = 3600.0
EVERY = 2
"""Every second edge is printed: ages a factor of two apart."""

LEAST_LASTING = 0.01
"""Ages reached by fewer jobs are not printed."""

HEADINGS = ("age", "hazard 1/h", "reached", "index 1/h")


@dataclass(frozen=True, slots=True)
class JobHazards:
    """Columns by age bin of the tenant and width of a job, as of `at_s`.

    `lasting_ratio` is the probability that it outlives the lower edge of the bin, given its age.
    """

    at_s: float
    age_s: float
    ended: int  # jobs of this tenant and width, faded
    hazard_per_s: tuple[float, ...]
    lasting_ratio: tuple[float, ...]
    index_per_s: tuple[float, ...]


def job_hazards(model: Hazards, job: str, at_s: float) -> JobHazards | None:
    """The hazards of `job`, None while too few jobs have ended."""
    found = model.hazard_of(job)
    if found is None:
        return None
    hazard, age_s, ended = found
    lasting = lasting_ratio(hazard[None, :], np.array([age_s]))[0]
    index = index_per_s(np.repeat(hazard[None, :], BINS, axis=0), EDGES_S)
    return JobHazards(at_s, age_s, round(ended), tuple(hazard.tolist()), tuple(lasting.tolist()), tuple(index.tolist()))


def hazard_rows(found: JobHazards) -> list[tuple[str, ...]]:
    """The table of `HEADINGS`, with a mark at the age of the job."""
    own = int(bins_of(np.array([found.age_s]))[0])
    rows: list[tuple[str, ...]] = []
    for at in range(BINS):
        if at != own and (at % EVERY or found.lasting_ratio[at] < LEAST_LASTING):
            continue
        rows.append(
            (
                format_duration(float(EDGES_S[at])) + (" <- now" if at == own else ""),
                f"{found.hazard_per_s[at] * HOUR_S:.3g}",
                f"{found.lasting_ratio[at]:.3f}" if at > own else "-",
                f"{found.index_per_s[at] * HOUR_S:.3g}",
            )
        )
    return rows


def hazard_document(found: JobHazards) -> dict[str, Any]:
    """All bins, for `--json`."""
    return {
        "at_s": found.at_s,
        "age_s": found.age_s,
        "ended": found.ended,
        "from_s": EDGES_S.tolist(),
        "hazard_per_s": list(found.hazard_per_s),
        "lasting_ratio": list(found.lasting_ratio),
        "index_per_s": list(found.index_per_s),
    }
