"""The price file: the GPU-hour by region and GPU model, premiums, energy and carbon.

prices.yaml beside this module is an example with a comment for each field.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from math import inf
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autopilot.core.model.errors import InputError, shown, unknown_name
from autopilot.metering.calendar import moment_s, zone_of
from autopilot.policies.dialect import read_yaml

OTHER = "other"
"""In `gpu_hour`: the price of every GPU model without one of its own."""
MOST_BYTES = 1 << 20

Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Budget = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Pue = Annotated[float, Field(ge=1.0, le=10.0)]
Level = Literal["island", "leaf", "block", "zone", "spread"]


class Rates(BaseModel):
    """What may change with time in a region; None: as in the region."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_hour: dict[str, Amount] = Field(default_factory=dict)
    energy_kwh: Amount | None = None
    carbon_g_kwh: Amount | None = None
    pue: Pue | None = None
    burst_ratio: Amount | None = None
    mig_premium: Amount | None = None
    topology_premium: dict[Level, Amount] | None = None


class Dated(Rates):
    """Other rates from one moment up to another: dates (00:00 in the zone of the file) or ISO 8601 times."""

    begin: str = Field(alias="from")
    until: str | None = None


class Region(Rates):
    """Prices and factors of one region, and their replacements for a time."""

    gpu_hour: dict[str, Amount] = Field(min_length=1)
    energy_kwh: Amount = 0.0
    carbon_g_kwh: Amount = 0.0
    pue: Pue = 1.0  # energy of the site / energy of its machines
    dated: tuple[Dated, ...] = ()

    def within(self, entry: Dated | None) -> Region:
        """The region with the rates of one entry in place of its own."""
        if entry is None:
            return self.model_copy(update={"dated": ()})
        given = {name: value for name in Rates.model_fields if (value := getattr(entry, name)) is not None}
        return self.model_copy(update={**given, "gpu_hour": {**self.gpu_hour, **entry.gpu_hour}, "dated": ()})


class Prices(BaseModel):
    """A price file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    currency: str = Field(pattern=r"^[A-Z]{3}$")
    zone: str = "UTC"  # of the days and months of bills, and of the dates of this file
    region: str  # of every pool absent from `pools`
    regions: dict[str, Region] = Field(min_length=1)
    pools: dict[str, str] = Field(default_factory=dict)
    burst_ratio: Amount = 1.0  # price of a GPU-hour beyond the guarantee / price of a guaranteed one
    mig_premium: Amount = 0.0  # added to the price of a MIG instance, as a part of it
    peak_tflops: dict[str, Amount] = Field(default_factory=dict)  # by GPU model, for the MFU of work that reports FLOPs
    topology_premium: dict[Level, Amount] = Field(default_factory=dict)  # by the required level of the work
    budgets: dict[str, Budget] = Field(default_factory=dict)  # of a calendar month, by tenant
    budget: Budget | None = None  # of a calendar month, of all tenants together

    @model_validator(mode="after")
    def _check_dates(self) -> Prices:
        """The dates of a region follow one another, without overlap."""
        zone_of(self.zone, "zone")
        for name in self.regions:
            last, word = -inf, ""
            for begin_s, end_s, entry in self._validity(name):
                if end_s <= begin_s:
                    raise ValueError(f"regions.{name}.dated: until {entry.until} is not after from {entry.begin}")
                if begin_s < last:
                    raise ValueError(
                        f"regions.{name}.dated: the entry from {entry.begin} overlaps the one from {word}; "
                        f"give that one `until: {entry.begin}`, or remove one of them"
                    )
                last, word = end_s, entry.begin
        return self

    def _validity(self, region: str) -> list[tuple[float, float, Dated]]:
        """(from, until) since 1970 of the dated rates of a region, in order."""
        zone = zone_of(self.zone, "zone")
        found = [
            (
                moment_s(each.begin, zone, f"regions.{region}.dated.from"),
                inf if each.until is None else moment_s(each.until, zone, f"regions.{region}.dated.until"),
                each,
            )
            for each in self.regions[region].dated
        ]
        return sorted(found, key=lambda entry: entry[:2])

    def changes_s(self) -> list[float]:
        """Moments of a change of some price, in seconds since 1970."""
        return sorted({at for name in self.regions for entry in self._validity(name) for at in entry[:2] if at < inf})

    def fixed(self, moment_s: float) -> Prices:
        """This file with the rates of one moment for all time."""
        return self.model_copy(update={"regions": dict(self.at(moment_s).regions)})

    def at(self, moment_s: float | None) -> Tariff:
        """The prices valid at a moment since 1970; None: now, as for a run without dates."""
        moment_s = time.time() if moment_s is None else moment_s
        regions = {}
        for name, region in self.regions.items():
            valid = [entry for begin_s, end_s, entry in self._validity(name) if begin_s <= moment_s < end_s]
            regions[name] = region.within(valid[0] if valid else None)
        return Tariff(self, regions)


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices of one moment: `Prices.at` is the only way to a price, so none is read without its date."""

    file: Prices
    regions: Mapping[str, Region]  # without dated rates

    @property
    def currency(self) -> str:
        """Three letters."""
        return self.file.currency

    def region_of(self, pool: str) -> Region:
        """The region of a pool."""
        return self.regions[self.file.pools.get(pool, self.file.region)]

    def gpu_hour(self, pool: str, model: str) -> float:
        """The list price of one GPU-hour. Raises `InputError` if the file has none for the GPU model."""
        found = self.region_of(pool).gpu_hour
        price = found.get(model, found.get(OTHER))
        if price is None:
            raise InputError(
                f"prices: regions.{self.file.pools.get(pool, self.file.region)}.gpu_hour has no price for "
                f"{model or 'a GPU'} (pool {pool or 'unknown'}); add it, or a price for `{OTHER}`"
            )
        return price

    def burst_of(self, pool: str) -> float:
        """Price of a GPU-hour beyond the guarantee / price of a guaranteed one, in the region of a pool."""
        own = self.region_of(pool).burst_ratio
        return self.file.burst_ratio if own is None else own

    def premium_of(self, pool: str, topology: str, profile: str) -> float:
        """The premium of work with a required topology or a MIG instance, as a part of the list price."""
        region, level = self.region_of(pool), cast("Level", topology)
        levels = self.file.topology_premium if region.topology_premium is None else region.topology_premium
        instance = self.file.mig_premium if region.mig_premium is None else region.mig_premium
        return levels.get(level, 0.0) + (instance if profile else 0.0)


def load_prices(path: Path | None = None) -> Prices:
    """The price file at `path`, or the shipped example. Raises `InputError` naming file, field, value and fix."""
    source = str(path) if path is not None else "prices.yaml"
    try:
        if path is None:
            text = resources.files("autopilot.metering").joinpath("prices.yaml").read_text(encoding="utf-8")
        elif not path.is_file():
            raise InputError(f"{path}: no such price file; copy the example in docs/metering.md and adapt it")
        elif path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: over {MOST_BYTES >> 20} MiB, too large for a price file; give another file")
        else:
            text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: the price file cannot be read: {error}") from error
    content = read_yaml(text, source)
    try:
        prices = Prices.model_validate(content)
    except ValidationError as error:
        raise InputError(_problem(error, source)) from error
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    for where, region in (("region", prices.region), *((f"pools.{p}", r) for p, r in prices.pools.items())):
        if region not in prices.regions:
            raise InputError(f"{source}: {where}: {region!r} is no region; {unknown_name(region, prices.regions)}")
    return prices


def flat_prices(gpu_hour: float, currency: str = "USD") -> Prices:
    """One price for every GPU. Raises `InputError` for an impossible price."""
    if not 0 <= gpu_hour <= 1e9:
        raise InputError(f"--price: {gpu_hour!r} is not allowed; write the price of a GPU-hour, for example 2.50")
    return Prices(currency=currency, region="all", regions={"all": Region(gpu_hour={OTHER: gpu_hour})})


def _problem(error: ValidationError, source: str) -> str:
    """The first problems of a file, each with its field and value."""
    lines = []
    for each in error.errors()[:5]:
        where = ".".join(str(part) for part in each["loc"]) or "the file"
        if each["type"] == "value_error":  # a rule about several fields names them itself
            lines.append(str(each["ctx"]["error"]))
            continue
        value = "" if each["type"] == "missing" else f"{shown(each['input'])}: "
        lines.append(f"{where}: {value}{each['msg'][0].lower()}{each['msg'][1:]}")
    return f"{source}: " + "; ".join(lines)
