"""Pairs that a person measured on one GPU (scripts/measure_pairs.py), as rows that the model learns from.

The format, `gpu-autopilot/pairs/1`, is JSON; docs/shared-gpus.md has its fields, units and provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from autopilot.core.model.colocation import Mechanism, Pair
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory.profiles import LoneProfile
from autopilot.core.sharing.sharers import Observed

SCHEMA = "gpu-autopilot/pairs/1"
_RATIOS = ("sm_ratio", "dram_ratio", "duty_ratio", "power_ratio")


def read_pairs(document: Any, source: str) -> tuple[Observed, ...]:
    """Both directions of each pair. Raises `InputError` that names `source` and the field.

    A case that failed has no rate, and is left out.
    """
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise InputError(f"{source}: not a table of {SCHEMA}; write one with scripts/measure_pairs.py")
    try:
        gpu = str(document["machine"]["gpu_model"])
        kinds = {name: _profile(each, f"{source}: kinds.{name}") for name, each in document["kinds"].items()}
        found = []
        for at, each in enumerate(document["pairs"]):
            where = f"{source}: pairs[{at}]"
            mechanism = Mechanism(each["mechanism"])
            for own, other, rate in ((each["a"], each["b"], each["rate_a"]), (each["b"], each["a"], each["rate_b"])):
                if rate is None:
                    continue
                value = _number(rate, f"{where}.rate")
                pair = Pair(own, other, mechanism, gpu)
                found.append(Observed(pair, kinds[own], kinds[other], min(value, 1.0), own, other, at_s=float(at)))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"{source}: {type(error).__name__}: {error}; measure again with scripts/measure_pairs.py"
        ) from error
    return tuple(found)


def _profile(each: Mapping[str, Any], where: str) -> LoneProfile:
    ratios = {
        name: float("nan") if each.get(name) is None else _number(each[name], f"{where}.{name}") for name in _RATIOS
    }
    return LoneProfile(_number(each["peak_mib"], f"{where}.peak_mib"), 3600.0, 0.0, **ratios)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < 0:
        raise InputError(f"{where} is {value!r}; it has to be a number, 0 or more: measure it again")
    return float(value)
