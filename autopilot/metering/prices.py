"""The price file: what a GPU-hour costs by region and GPU model, premiums, energy and carbon.

prices.yaml beside this module is an example with a comment for each field.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autopilot.core.model.errors import InputError, shown, unknown_name
from autopilot.policies.dialect import read_yaml

OTHER = "other"
"""In `gpu_hour`: the price of every GPU model that is not named."""
MOST_BYTES = 1 << 20

Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Level = Literal["island", "leaf", "block", "zone", "spread"]


class Region(BaseModel):
    """Prices and factors of one region."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_hour: dict[str, Amount] = Field(min_length=1)
    energy_kwh: Amount = 0.0
    carbon_g_kwh: Amount = 0.0
    pue: float = Field(default=1.0, ge=1.0, le=10.0)  # energy of the site / energy of its machines


class Prices(BaseModel):
    """A price file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    currency: str = Field(pattern=r"^[A-Z]{3}$")
    region: str  # of every pool that `pools` does not name
    regions: dict[str, Region] = Field(min_length=1)
    pools: dict[str, str] = Field(default_factory=dict)
    burst_ratio: Amount = 1.0  # price of a GPU-hour beyond the guarantee / price of a guaranteed one
    mig_premium: Amount = 0.0  # added to the price of a MIG instance, as a part of it
    peak_tflops: dict[str, Amount] = Field(default_factory=dict)  # by GPU model, for the MFU of work that reports FLOPs
    topology_premium: dict[Level, Amount] = Field(default_factory=dict)  # by the level that the work requires

    def region_of(self, pool: str) -> Region:
        """The region of a pool."""
        return self.regions[self.pools.get(pool, self.region)]

    def gpu_hour(self, pool: str, model: str) -> float:
        """The list price of one GPU-hour. Raises `InputError` where the file has none for the GPU model."""
        found = self.region_of(pool).gpu_hour
        price = found.get(model, found.get(OTHER))
        if price is None:
            raise InputError(
                f"prices: regions.{self.pools.get(pool, self.region)}.gpu_hour has no price for {model or 'a GPU'} "
                f"(pool {pool or 'unknown'}); add it, or a price for `{OTHER}`"
            )
        return price


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
    try:
        prices = Prices.model_validate(read_yaml(text, source))
    except ValidationError as error:
        raise InputError(_problem(error, source)) from error
    for where, region in (("region", prices.region), *((f"pools.{p}", r) for p, r in prices.pools.items())):
        if region not in prices.regions:
            raise InputError(f"{source}: {where}: {region!r} is no region; {unknown_name(region, prices.regions)}")
    return prices


def flat_prices(gpu_hour: float, currency: str = "USD") -> Prices:
    """One price for every GPU. Raises `InputError` for a price that is none."""
    if not 0 <= gpu_hour <= 1e9:
        raise InputError(f"--price: {gpu_hour!r} is not allowed; write the price of a GPU-hour, for example 2.50")
    return Prices(currency=currency, region="all", regions={"all": Region(gpu_hour={OTHER: gpu_hour})})


def _problem(error: ValidationError, source: str) -> str:
    """The first problems of a file, each with its field and value."""
    lines = []
    for each in error.errors()[:5]:
        where = ".".join(str(part) for part in each["loc"]) or "the file"
        value = "" if each["type"] == "missing" else f"{shown(each['input'])}: "
        lines.append(f"{where}: {value}{each['msg'][0].lower()}{each['msg'][1:]}")
    return f"{source}: " + "; ".join(lines)
