"""The errors of GPUs in the answers of a Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.xid_facts import REMAP_FAILED, REMAP_NONE, REMAP_PENDING, REMAP_UNKNOWN, UNKNOWN_XID
from autopilot.core.model.records import Errors
from collectors.promql import Row

_XID, _FAILED = dcgm.FIELDS[230], dcgm.FIELDS[395]


def errors_of(answers: Iterable[tuple[dcgm.Field, list[Row]]]) -> Errors:
    """One row for each code of a GPU or an instance now."""
    entities: list[str] = []
    found: list[tuple[int, int]] = []
    for given, rows in answers:
        codes, faults = dcgm.clean(given, np.array([_code(row) for row in rows]))
        for row, code, fault in zip(rows, codes.tolist(), faults.tolist(), strict=True):
            if fault == dcgm.Fault.OK and uuid_of(row):
                entities.append(dcgm.entity_id(uuid_of(row), row.metric.GPU_I_ID))
                bad = REMAP_FAILED if given is _FAILED else REMAP_PENDING
                found.append(
                    (int(code), REMAP_UNKNOWN) if given is _XID else (UNKNOWN_XID, bad if code else REMAP_NONE)
                )
    names = np.empty(len(entities), object)
    names[:] = entities
    table = np.array(found, np.int32).reshape(-1, 2)
    return Errors(names, table[:, 0].copy(), table[:, 1].astype(np.int8))


def _code(row: Row) -> float:
    """The code of a series, or the one that it counts; NaN without a count."""
    try:
        if row.metric.xid:
            return float(row.metric.xid) if float(row.value[1]) > 0 else math.nan
        return float(row.metric.code)
    except ValueError:
        return math.nan


def uuid_of(row: Row) -> str:
    """The UUID of the GPU of a series."""
    return row.metric.UUID or row.metric.uuid
