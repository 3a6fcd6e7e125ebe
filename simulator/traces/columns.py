"""The columns of a job file: name, kind of value, limits, and what each one means.

One table (`JOB_COLUMNS`) from which reading, checking, writing and the documentation follow. A value
that is not given is unknown: NaN for amounts, -1 for counts and flags, "" for text; never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autopilot.core.snapshot import SLO_CLASS_NAMES

ValueKind = Literal["text", "count", "flag", "amount"]

CENTURY_S = 3.2e9
"""No duration or limit is longer; a larger one is a wrong unit (milliseconds, nanoseconds)."""

LATEST_SUBMIT_S = 1e10
"""Seconds since 1970 fit (until the year 2286); milliseconds since 1970 do not."""

MOST_GPUS = 1e6
"""A wider job than any machine that exists is a mistake in the file."""

TOPOLOGIES = ("node", "island", "leaf", "rack", "block", "zone", "spread")
"""Closest domain that all members must share (a rack is what hangs on one leaf switch), or `spread` over nodes."""

TRUE_WORDS = ("true", "yes", "1", "1.0", "t", "y")
FALSE_WORDS = ("false", "no", "0", "0.0", "f", "n")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `low` and `high` are inclusive limits of its value, `about` is for the reader of the docs."""

    name: str
    kind: ValueKind
    about: str
    required: bool = False
    low: float = 0.0
    high: float = float("inf")
    allowed: tuple[str, ...] = ()


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
    Column("gpu_type", "text", "GPU models that it may use, joined by |"),
    Column("limit_s", "amount", "wall-time limit that its owner declared", low=1.0, high=CENTURY_S),
    Column("priority", "count", "higher is served first", low=0, high=2**31 - 1),
    Column("slo_class", "text", "class of service", allowed=SLO_CLASS_NAMES),
    Column("preemptible", "flag", "may be stopped for others"),
    Column("min_gpus", "count", "an elastic gang may start with so many", low=1, high=MOST_GPUS),
    Column("gpu_milli", "count", "thousandths of one GPU, for a share", low=1, high=1000),
    Column("mig_profile", "text", "MIG profile of each slice"),
    Column("gpu_memory_gib", "amount", "memory that each GPU must have", high=4096),
    Column("cpus", "amount", "CPUs of the whole gang", high=1e8),
    Column("memory_mib", "count", "main memory of the whole gang", high=2**53),
    Column("topology", "text", "domain that all members of the gang must share", allowed=TOPOLOGIES),
    Column("checkpoint_interval_s", "amount", "time between two checkpoints", low=1.0, high=CENTURY_S),
    Column("checkpoint_gib", "amount", "size of one checkpoint of the whole gang", high=1e7),
    Column(
        "restart_s", "amount", "time from placement to the first useful step after a stop", high=CENTURY_S
    ),
)

BY_NAME = {column.name: column for column in JOB_COLUMNS}
REQUIRED = tuple(column.name for column in JOB_COLUMNS if column.required)
