"""Stateless noise: random numbers as a hash of counters, available in any order.

The counters are 64-bit integers, vectors of any shape; a number depends only on its counter.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
U64 = NDArray[np.uint64]

# odd multipliers that spread small counters over all bits, one for each kind of counter
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
JOB = np.uint64(0xD1B54A32D192ED03)
BLOCK = np.uint64(0x8CB92BA72F3D8DD7)

_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = (np.uint64(n) for n in (27, 30, 31, 11))


def mixed(counter: U64) -> U64:
    """The output function of splitmix64 (Steele, Lea, Flood 2014). Overwrites and returns `counter`."""
    counter ^= counter >> _S30
    counter *= _M1
    counter ^= counter >> _S27
    counter *= _M2
    counter ^= counter >> _S31
    return counter


def uniform(bits: U64) -> F64:
    """Numbers in [0, 1) from mixed bits."""
    return np.asarray((bits >> _S11) * 2.0**-53)


def as_counter(number: NDArray[Any]) -> U64:
    """Integers (including negative ones) as counters; floats are truncated to integers."""
    return np.asarray(number).astype(np.int64).view(np.uint64)


@lru_cache(maxsize=256)
def stream_key(seed: int, purpose: str) -> np.uint64:
    """The start of a separate stream of counters for each seed and purpose."""
    digest = blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))
