"""A configured source yields data, or a gap with the reason and similar names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from autopilot.core.model.records import Batch, Gap

NO_AGES = np.zeros(0, np.float32)

NOTHING = "it returned no data and no reason: check its settings"

NEAREST = 3
"""Names in a message."""


def yields(batch: Batch) -> bool:
    """True if a batch has any data: a value, an object, or an error code. Empty tables and tables of NaN have none."""
    telemetry, services = batch.telemetry, batch.services
    return bool(
        (telemetry is not None and ((telemetry.samples > 0).any() or np.isfinite(telemetry.mean).any()))
        or (services is not None and len(services.service))
        or (batch.errors is not None and len(batch.errors.entity_ids))
        or (batch.inventory is not None and len(batch.inventory.nodes.id))
        or (batch.work is not None and len(batch.work.workloads.id))
    )


def newest_of(batch: Batch) -> float:
    """The time of the newest data of a batch; NaN for an empty one."""
    if batch.inventory is not None or batch.work is not None:
        return batch.collected_s
    ages_s = np.concatenate([each.age_s for each in (batch.telemetry, batch.services) if each is not None] or [NO_AGES])
    known = ages_s[np.isfinite(ages_s)]
    return batch.collected_s - float(known.min()) if len(known) else float("nan")


def problem_of(batch: Batch) -> str:
    """The reason for a batch without a part; "" for one with a part."""
    parts = (batch.inventory, batch.work, batch.telemetry, batch.errors, batch.services)
    if any(each is not None for each in parts):
        return ""
    whole = sorted(batch.gaps, key=lambda gap: bool(gap.object_id or gap.signal))
    return whole[0].reason if whole else NOTHING


def or_gap(batch: Batch) -> Batch:
    """The batch, with a gap if it has neither data nor a gap."""
    if batch.gaps or yields(batch):
        return batch
    return replace(batch, gaps=(Gap(batch.source, "", "", NOTHING),))


def nearest(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    """A few of these names with one of the parts in them, ignoring case."""
    return list(islice((each for each in names if any(part in each.lower() for part in parts)), NEAREST))


def seen(names: Sequence[str]) -> str:
    """The end of a message: the names seen instead; "" for none."""
    return f"; the nearest names seen: {', '.join(names)}" if names else ""
