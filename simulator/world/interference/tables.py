"""Measured pairs of work on one GPU (NOTICE.md has their sources and licences), as arrays.

`gavel_pairs.csv`: steps/s of 26 kinds of training, alone and in pairs of two processes. A kind's pressure is its mean
effect on the others; kinds are in ascending order of it. `miso_mig_a100.csv`: seconds per iteration of 7 models at up
to 4 batch sizes on MIG slices of an A100 (DeepSpeech2 is left out: its iterations differ in length), in ascending
order of the activity that nvidia-smi shows.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
SLICES = {"1g.5gb": 14 / 108, "2g.10gb": 28 / 108, "3g.20gb": 42 / 108, "4g.20gb": 56 / 108, "7g.40gb": 1.0}
"""The part of the 108 SMs of an A100 in each slice. The whole slice stands for the whole GPU."""
_LEFT_OUT = "deepspeech2"


@dataclass(frozen=True, slots=True)
class Pairs:
    """One GPU model, kinds in ascending order of pressure. `loss[a, b]`: 1 - the rate of kind a beside b over its rate
    alone, in [0, 1]; `total[a, b]`: the sum of both rates. Unmeasured pairs (out of memory) have the mean of their row
    and column.
    """

    kinds: tuple[str, ...]
    loss: F64
    total: F64


@lru_cache(maxsize=4)
def pairs_of(gpu: str) -> Pairs:
    """The pairs on a `v100`, `p100` or `k80`."""
    rows = [row for row in _read("gavel_pairs.csv") if row["gpu"] == gpu]
    alone = {row["a"]: float(row["rate_a"]) for row in rows if not row["b"]}
    place = {kind: at for at, kind in enumerate(alone)}
    rate = np.full((len(alone), len(alone)), np.nan)
    for row in rows:
        if row["b"] and float(row["rate_a"]) > 0:
            a, b = place[row["a"]], place[row["b"]]
            rate[a, b], rate[b, a] = float(row["rate_a"]) / alone[row["a"]], float(row["rate_b"]) / alone[row["b"]]
    loss = _filled(np.clip(1.0 - rate, 0.0, 1.0))
    total = _filled(rate + rate.T)
    order = np.argsort(loss.mean(axis=0), kind="stable")
    kinds = list(alone)
    square = np.ix_(order, order)
    return Pairs(tuple(kinds[at] for at in order), loss[square], total[square])


@lru_cache(maxsize=1)
def slice_speeds() -> tuple[F64, F64]:
    """(fractions of a GPU in ascending order, speed on each over that on the whole GPU [kinds, fractions])."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    busy: dict[tuple[str, str], float] = {}
    for row in _read("miso_mig_a100.csv"):
        if row["model"] != _LEFT_OUT:
            key = (row["model"], row["batch"])
            found.setdefault(key, {})[SLICES[row["profile"]]] = float(row["iter_s_median"])
            busy[key] = float(row["util_sm_pct"])
    fractions = sorted(SLICES.values())
    speeds = []
    for key in sorted(found, key=lambda each: (busy[each], each)):
        times_s = found[key]
        known = sorted(times_s)
        speeds.append(np.interp(fractions, [0.0, *known], [0.0, *(times_s[1.0] / times_s[each] for each in known)]))
    return np.array(fractions), np.minimum(np.array(speeds), 1.0)


def _read(name: str) -> list[dict[str, str]]:
    with files(__package__).joinpath(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _filled(table: F64) -> F64:
    """Unknown entries by the means of row and column, of all where those are unknown too."""
    whole = float(np.nanmean(table))
    row, column = (np.array([_mean(each, whole) for each in lines]) for lines in (table, table.T))
    return np.where(np.isnan(table), (row[:, None] + column[None, :]) / 2.0, table)


def _mean(line: F64, otherwise: float) -> float:
    known = line[~np.isnan(line)]
    return float(known.mean()) if len(known) else otherwise
