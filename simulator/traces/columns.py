"""The columns of a job file: name, type of value, limits, and meaning.

Reading, checking, writing and the documentation use one table (`JOB_COLUMNS`). Limits and meaning of a job's own
declarations come from the workload contract (autopilot/contract). A missing value is unknown: NaN for amounts, -1 for
counts and flags, "" for text; never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autopilot.contract import CENTURY_S, MOST_GPUS, contract_fields

ValueKind = Literal["text", "count", "flag", "amount"]

LATEST_SUBMIT_S = 1e10
"""Seconds since 1970 fit (until the year 2286); milliseconds since 1970 do not."""

TRUE_WORDS = ("true", "yes", "1", "1.0", "t", "y")
FALSE_WORDS = ("false", "no", "0", "0.0", "f", "n")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `low` and `high` are inclusive limits of its value, `about` describes it in the documentation."""

    name: str
    kind: ValueKind
    about: str
    required: bool = False
    low: float = 0.0
    high: float = float("inf")
    allowed: tuple[str, ...] = ()


SAID = {found.stated.column: found for found in contract_fields() if found.stated.column}


def _said(name: str, kind: ValueKind, about: str = "") -> Column:
    """The column for a field of the workload contract, with its limits; `about` if the column covers less than the
    field.
    """
    found = SAID[name]
    high = float("inf") if found.high is None else found.high
    return Column(name, kind, about or found.meaning, low=found.low or 0.0, high=high, allowed=found.words)


JOB_COLUMNS: tuple[Column, ...] = (
    Column("job_id", "text", "unique name of the job", required=True),
    Column("tenant", "text", "who pays: team, project or virtual cluster", required=True),
    Column("user", "text", "who submitted it"),
    Column("name", "text", "what its owner calls it"),
    Column(
        "submit_s",
        "amount",
        "when it was submitted; seconds from any zero",
        required=True,
        high=LATEST_SUBMIT_S,
    ),
    Column("duration_s", "amount", "how long it runs, without waiting", required=True, high=CENTURY_S),
    Column(
        "gpus",
        "amount",
        "whole GPUs of the whole gang, or a share of one GPU below 1; with mig_profile, the number of slices",
        required=True,
        high=MOST_GPUS,
    ),
    Column("nodes", "count", "nodes that it ran on", high=MOST_GPUS),
    Column("status", "text", "how it ended"),
    Column("kind", "text", "what sort of work it is; defaults are looked up by it"),
    _said("gpu_type", "text"),
    _said("limit_s", "amount"),
    _said("priority", "count"),
    _said("slo_class", "text"),
    _said("preemptible", "flag"),
    Column("min_gpus", "count", "an elastic gang may start with this many", low=1, high=MOST_GPUS),
    _said("gpu_milli", "count"),
    _said("mig_profile", "text", "MIG profile of each slice"),
    _said("gpu_memory_gib", "amount"),
    Column("cpus", "amount", "CPUs of the whole gang", high=1e8),
    Column("memory_mib", "count", "main memory of the whole gang", high=2**53),
    _said("topology", "text"),
    _said("checkpoint_interval_s", "amount"),
    _said("checkpoint_gib", "amount"),
    _said("restart_s", "amount"),
    _said("preemption_delay_s", "amount"),
    _said("checkpoint_on_request", "flag"),
    _said("trust", "text"),
    _said("share", "text"),
    Column("image", "text", "digest or name of its container image"),
    Column("peak_memory_gib", "amount", "most memory that it holds on each of its GPUs", high=1e4),
)

BY_NAME = {column.name: column for column in JOB_COLUMNS}
REQUIRED = tuple(column.name for column in JOB_COLUMNS if column.required)
