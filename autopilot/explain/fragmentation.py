"""Fragmentation in words, and as plain values for JSON."""

from __future__ import annotations

from math import isfinite
from typing import Any

from autopilot.core.model.modes import Modes
from autopilot.core.model.units import counted
from autopilot.core.placement.fragmentation.measure import CAUSES, Cause, Fragmentation, Loss, PoolFragmentation

SHOWN_GPUS = 0.005
"""Smaller losses are rounding."""


def fragmentation_lines(found: Fragmentation, modes: Modes) -> list[str]:
    """The index of each pool with its parts, the actions against it, and the widest gangs with room."""
    lines = []
    for pool in found.pools:
        lines.append(f"pool {pool.pool}: {pool.free_gpus:.4g} GPUs free; {_index_words(pool)}")
        if pool.expected is not None:
            lines += _loss_lines(pool.expected, "of the expected mix", modes)
        lines += _loss_lines(pool.pending, "of the pending work", modes)
    widest = ", ".join(f"{model} {counted(gpus, 'GPU')}" for model, gpus in found.largest_gang_gpus)
    return [*lines, f"widest gang that fits now: {widest}"] if widest else lines


def _index_words(pool: PoolFragmentation) -> str:
    if pool.expected is None:
        return f"fragmentation index unknown: {pool.reason}"
    return f"fragmentation index {pool.index_ratio:.3f}"


def _loss_lines(loss: Loss, of_what: str, modes: Modes) -> list[str]:
    return [
        f"  {cause}: {gpus:.4g} GPUs {of_what} do not fit because room is {CAUSES[cause].words}; "
        f"{helps_words(CAUSES[cause], modes)}"
        for cause, gpus in loss.by_cause
        if gpus >= SHOWN_GPUS
    ]


def helps_words(cause: Cause, modes: Modes) -> str:
    """Actions against a cause, with their modes."""
    if not cause.actions:
        return "no action helps"
    named = " or ".join(f"{name} (mode {getattr(modes, name)})" for name in cause.actions)
    return f"{named} could free up to that"


def fragmentation_document(found: Fragmentation, modes: Modes) -> dict[str, Any]:
    """The same as plain values; null: unknown."""
    return {
        "largest_gang_gpus": dict(found.largest_gang_gpus),
        "pools": [
            {
                "pool": pool.pool,
                "free_gpus": pool.free_gpus,
                "index_ratio": pool.index_ratio if isfinite(pool.index_ratio) else None,
                "index_by_cause": dict(pool.index_by_cause),
                "reason": pool.reason,
                "expected": None if pool.expected is None else _loss_document(pool.expected, modes),
                "pending": _loss_document(pool.pending, modes),
            }
            for pool in found.pools
        ],
    }


def _loss_document(loss: Loss, modes: Modes) -> dict[str, Any]:
    return {
        "demand_gpus": loss.demand_gpus,
        "fits_gpus": loss.fits_gpus,
        "stranded_gpus": loss.stranded_gpus,
        "by_cause": [
            {
                "cause": cause,
                "gpus": gpus,
                "actions": {name: str(getattr(modes, name)) for name in CAUSES[cause].actions},
            }
            for cause, gpus in loss.by_cause
        ],
    }
