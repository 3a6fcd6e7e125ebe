"""Features of one job for boosting: the statistics of its kins, its name, its request, and the time of day."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64
from models.opinions import LEAST_ENDED, NEIGHBOURS, OPINIONS
from models.recent import F32, LEVELS_OF_KIN, STATISTICS, Asked, Kept, first_known, modes, statistics

NAME_COLUMNS = 12
"""Number of columns that the trigrams of a name are hashed into: a new name is near similar ones."""

DAY_S, WEEK_DAYS = 86_400.0, 7


@cache
def _hasher() -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(analyzer="char_wb", ngram_range=(3, 3), n_features=NAME_COLUMNS, norm="l2")


@lru_cache(maxsize=65_536)
def _hashed(stem: str) -> tuple[float, ...]:
    return tuple(_hasher().transform([stem]).toarray()[0].tolist())


def name_columns(asked: Asked) -> F64:
    """Hashed trigrams of each job's name stem, NaN for jobs without a name. [jobs, NAME_COLUMNS]."""
    nameless = (float("nan"),) * NAME_COLUMNS
    rows = [_hashed(stem) if stem else nameless for stem in asked.stem.tolist()]
    return np.array(rows, float).reshape(len(asked), NAME_COLUMNS)


def runtime_features(asked: Asked, kept: Kept, opinions: F64, candidates: F32) -> F64:
    """Features [jobs, columns]: the same columns for every job of a history, NaN where unknown."""
    beside = candidates[:, -NEIGHBOURS:]
    day = asked.submit_s / DAY_S
    return np.column_stack(
        [
            statistics(kept).reshape(len(asked), -1),
            first_known(kept, LEAST_ENDED),
            modes(candidates[:, :-NEIGHBOURS]),
            modes(beside),
            opinions[:, 0],
            name_columns(asked),
            asked.gpus,
            asked.other,
            (day % 1.0) * 24.0,
            np.floor(day) % WEEK_DAYS,
        ]
    )


def feature_names(others: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns of `runtime_features`; `others` are those of `Asked.other`."""
    return (
        *(f"{statistic} of {kin}" for kin in LEVELS_OF_KIN for statistic in STATISTICS),
        "kin",
        "mode of ended",
        "mode of submitted",
        *(f"{OPINIONS[0]} at {level:g}" for level in LEVELS),
        *(f"name {number}" for number in range(NAME_COLUMNS)),
        "gpus",
        *others,
        "hour",
        "weekday",
    )
