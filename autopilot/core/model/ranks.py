"""What training programs report of their ranks: a table of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Texts = NDArray[np.object_]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankTable:
    """One row for each GPU whose training program reports the time of its steps by rank."""

    id: Texts  # UUID of the GPU
    rank: I32  # of the program; -1: not stated
    stage: I32  # of its pipeline; -1: not stated
    busy_s: F64  # time of a step in which the rank computes, the mean of about a minute
