"""The cost of each owner's time: one row for each line and kind of charge.

A guarantee is paid by reservation. Its used part is charged to the using work, the rest to the owner of its queue: the
two are the guarantee, never more. Holdings of a queue beyond it are a burst, paid by consumption. Work with a required
topology or a MIG instance pays a premium. Free capacity outside the guarantees has rows without a charge. Each GPU-hour
of the capacity has its list price in one row: for a lent guarantee, in that of the burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.metering.amounts import Kind
from autopilot.metering.calendar import Calendar
from autopilot.metering.lines import GRAINS_PER_GPU_H
from autopilot.metering.prices import Prices

if TYPE_CHECKING:
    import pandas as pd

FREE = (Kind.IDLE, Kind.FRAGMENTED, Kind.OUT_OF_USE, Kind.GAP)
"""Kinds of free capacity, in the order of the search for an unused guarantee in them."""
PLACE = ["begin", "gpu_model"]
LEAST_H = 1e-9
"""Anything below is a remainder of rounding."""


class Meter(StrEnum):
    """Kinds of charges; capacity without a charge has its kind of capacity instead."""

    USED = "guarantee used"
    UNUSED = "guarantee unused"
    LENT = "guarantee lent"  # the unused part held by others' work: listed as its burst
    BURST = "burst"
    PREMIUM = "premium"


def price_edges(prices: Prices, calendar: Calendar) -> list[int]:
    """Moments of a store with a change of some price."""
    return [calendar.ticks(at_s) for at_s in prices.changes_s()] if calendar.start_s is not None else []


def charges_of(lines: pd.DataFrame) -> pd.DataFrame:
    """The charges of lines with prices (`priced`), each with its texts and period.

    `meter`; `hours` of the charge in GPU-h; `rate` and `listed`, contracted and list price of one GPU-h; `physical`,
    GPU-h of the capacity (in total the capacity, even if one is charged twice); `share`, the part of its line's energy.
    """
    import pandas as pd

    capacity, held, reserved, free = (
        lines[lines["kind"].isin(kinds)] for kinds in ([Kind.CAPACITY], [Kind.HELD], [Kind.RESERVED], FREE)
    )
    rates = _model_rates(capacity)
    found = [*_held(held, rates), *_guaranteed_and_free(held, reserved, free, rates)]
    parts = [each for each in found if len(each)]
    return pd.concat(parts, ignore_index=True) if parts else _charge(held, "", 0.0, 0.0, 0.0)


def priced(lines: pd.DataFrame, prices: Prices, calendar: Calendar) -> pd.DataFrame:
    """Lines (`lines.lines_of`) with the prices of their time and place; without dates, the present ones.

    Raises `InputError` for a GPU model without a price.
    """
    dated = calendar.start_s is not None
    begins = lines["begin"].unique().tolist()
    at = {begin: prices.at(calendar.moment(begin).timestamp() if dated else None) for begin in begins}
    keys = list(
        zip(lines["begin"], lines["pool"], lines["gpu_model"], lines["topology"], lines["profile"], strict=True)
    )
    known = {
        key: (
            at[key[0]].gpu_hour(key[1], key[2]),
            at[key[0]].burst_of(key[1]),
            at[key[0]].premium_of(key[1], key[3], key[4]),
            at[key[0]].region_of(key[1]),
        )
        for key in set(keys)
    }
    price, burst, premium, region = zip(*(known[key] for key in keys), strict=True) if keys else [()] * 4
    return lines.assign(
        hours=lines["gpu_time"].astype(float) / GRAINS_PER_GPU_H,
        price=price,
        burst_ratio=burst,
        premium_ratio=premium,
        pue=[each.pue for each in region],
        carbon_g_kwh=[each.carbon_g_kwh for each in region],
        energy_price=[each.energy_kwh for each in region],
    )


def _model_rates(capacity: pd.DataFrame) -> pd.Series[float]:
    """The price of a guaranteed GPU-hour: the mean over the pools with the model, as it is not tied to one."""
    cost = (capacity["hours"] * capacity["price"]).groupby([capacity[name] for name in PLACE]).sum()
    return cost / capacity.groupby(PLACE)["hours"].sum()


def _rate(lines: pd.DataFrame, rates: pd.Series[float]) -> np.ndarray:
    """The rate of each line; if the cluster had no GPU of the model, its own list price."""
    found = lines.merge(rates.rename("_rate"), how="left", left_on=PLACE, right_index=True)["_rate"]
    return np.asarray(found.fillna(lines["price"]).to_numpy(), float)


def _charge(lines: pd.DataFrame, meter: str, hours: Any, rate: Any, listed: Any) -> pd.DataFrame:
    """One charge for each line."""
    return lines.assign(meter=meter, hours=hours, rate=rate, listed=listed, physical=hours, share=1.0)


def _held(held: pd.DataFrame, rates: pd.Series[float]) -> Sequence[pd.DataFrame]:
    """The used guarantee, the burst and the premium of held GPU time."""
    burst_h = held["borrowed"].astype(float) / GRAINS_PER_GPU_H
    used_h = (held["gpu_time"] - held["borrowed"]).astype(float) / GRAINS_PER_GPU_H
    price, part = held["price"], 1 / held["hours"].where(held["hours"] > 0, 1.0)
    used = _charge(held, Meter.USED, used_h, _rate(held, rates), price).assign(share=used_h * part)
    burst = _charge(held, Meter.BURST, burst_h, price * held["burst_ratio"], price).assign(share=burst_h * part)
    more = price * held["premium_ratio"]
    premium = _charge(held, Meter.PREMIUM, held["hours"], more, more).assign(physical=0.0, share=0.0)
    # a line without GPU time (a stop that lost progress) has one charge of nothing
    return used[(used["hours"] > 0) | (held["hours"] <= 0)], burst[burst["hours"] > 0], premium[more > 0]


def _guaranteed_and_free(
    held: pd.DataFrame, reserved: pd.DataFrame, free: pd.DataFrame, rates: pd.Series[float]
) -> Sequence[pd.DataFrame]:
    """Kept and lent parts of the unused guarantees; the rest of the free capacity."""
    owner = ["begin", "queue", "gpu_model"]
    used = ((held["gpu_time"] - held["borrowed"]) / GRAINS_PER_GPU_H).groupby([held[name] for name in owner]).sum()
    rest = reserved.merge(used.rename("_used"), how="left", left_on=owner, right_index=True)
    rest["hours"] = (rest["hours"] - rest["_used"].fillna(0.0).astype(float)).clip(lower=0.0)
    unused = rest.drop(columns="_used").assign(rate=_rate(rest, rates))
    asked = unused.groupby(PLACE)["hours"].sum()
    kept_h = _kept(free, asked)
    by_place = kept_h.groupby([free[name] for name in PLACE]).sum()
    part = (by_place / asked.where(asked > 0)).fillna(0.0).rename("_part")
    unused = unused.merge(part, how="left", left_on=PLACE, right_index=True).fillna({"_part": 0.0})
    lent = _charge(unused, Meter.LENT, unused["hours"] * (1 - unused["_part"]), unused["rate"], 0.0)
    lent = lent.assign(physical=0.0, share=0.0)
    left_h = free["hours"] - kept_h
    left = _charge(free, "", left_h, 0.0, free["price"])
    left = left.assign(meter=free["kind"], share=left_h / free["hours"].where(free["hours"] > 0, 1.0))
    return _placed(unused, free, kept_h), lent[lent["hours"] > LEAST_H].drop(columns="_part"), left[left_h > LEAST_H]


def _kept(free: pd.DataFrame, asked: pd.Series[float]) -> pd.Series[float]:
    """Hours of each free line kept by the unused guarantees of its model: idle capacity first, of all pools alike."""
    ranked = free.assign(_rank=[FREE.index(Kind(kind)) for kind in free["kind"]])
    level = [*PLACE, "_rank"]
    whole = ranked.groupby(level)["hours"].sum().rename("_whole")
    before = (whole.groupby(level=[0, 1]).cumsum() - whole).rename("_before")
    for column, on in ((asked.rename("_asked"), PLACE), (whole, level), (before, level)):
        ranked = ranked.merge(column, how="left", left_on=on, right_index=True)
    taken = (ranked["_asked"].fillna(0.0) - ranked["_before"]).clip(lower=0.0)
    part = (taken / ranked["_whole"].where(ranked["_whole"] > 0, 1.0)).clip(upper=1.0)
    return ranked["hours"] * part


def _placed(unused: pd.DataFrame, free: pd.DataFrame, kept_h: pd.Series[float]) -> pd.DataFrame:
    """The unused guarantees in the pools of their free GPUs, each with the list price and the energy of its place."""
    columns = ["begin", "gpu_model", "pool", "price", "pue", "carbon_g_kwh", "energy_price"]
    energies = ["energy_mj", "powered", "counted"]
    share = kept_h / free["hours"].where(free["hours"] > 0, 1.0)
    place = free[columns].assign(_kept=kept_h, **{name: free[name] * share for name in energies})
    place = place[place["_kept"] > 0].groupby(columns, as_index=False).sum()
    place["_of"] = place["_kept"] / place.groupby(PLACE)["_kept"].transform("sum")
    mine = unused[unused["hours"] * unused["_part"] > LEAST_H].drop(columns=[*columns[2:], *energies])
    asked = mine.groupby(PLACE)["hours"].transform("sum")
    found = mine.assign(_mine=mine["hours"] / asked).merge(place, on=PLACE)
    hours = found["hours"] * found["_part"] * found["_of"]
    for name in energies:
        found[name] = found[name] * found["_mine"]
    return _charge(found, Meter.UNUSED, hours, found["rate"], found["price"]).drop(
        columns=["_kept", "_of", "_part", "_mine"]
    )
