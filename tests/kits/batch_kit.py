"""What every batch of a collector keeps to, whatever its source does."""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.dcgm import SIGNALS, WINDOWS_S, Quality
from autopilot.core.model.records import Batch


def check_batch(batch: Batch, name: str, now_s: float) -> None:
    """Every statement that assembling rests on; the tests of each source call it on real answers too."""
    assert (batch.source, batch.collected_s) == (name, now_s)
    assert all(gap.source == name and gap.reason for gap in batch.gaps)
    assert len(set(batch.gaps)) == len(batch.gaps)
    seen = batch.telemetry
    if seen is None:
        assert batch.gaps
        return
    entities = len(seen.entity_ids)
    assert (seen.signals, seen.windows_s) == (SIGNALS, WINDOWS_S)
    assert len(set(seen.entity_ids)) == entities
    assert seen.mean.shape == seen.maximum.shape == (len(SIGNALS), len(WINDOWS_S), entities)
    assert seen.samples.shape == (len(WINDOWS_S), entities)
    assert seen.age_s.shape == seen.quality.shape == (entities,)
    dtypes = [a.dtype for a in (seen.mean, seen.maximum, seen.samples, seen.age_s, seen.quality)]
    assert dtypes == [np.float32, np.float32, np.int32, np.float32, np.int8]
    known = ~np.isnan(seen.mean)
    assert (seen.mean[known] >= 0).all()
    assert (seen.maximum[known] >= seen.mean[known] * (1 - 1e-5)).all()
    for row, signal in enumerate(SIGNALS):
        if signal.endswith("_ratio"):
            assert (seen.maximum[row][known[row]] <= 1.0).all()
    activity = known[0]
    assert ((seen.samples > 0) == activity).all(), "samples are those of the SM activity"
    assert (np.diff(seen.samples, axis=0) >= 0).all(), "a longer window holds no fewer samples"
    assert (np.isinf(seen.age_s) == ~activity[-1]).all(), "no sample, no age"
    assert (seen.age_s >= 0).all()
    assert ((seen.quality > Quality.NONE) == activity[-1]).all()
