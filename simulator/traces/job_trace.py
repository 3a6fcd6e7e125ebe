"""Jobs as columns: the content of a job file after reading and checking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.traces.columns import BY_NAME, JOB_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Texts = npt.NDArray[np.object_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobTrace:
    """Jobs as columns, one entry per job, sorted by `submit_s`, then `job_id`; the first submit is 0.

    Unknown is "" in text, NaN in amounts, -1 in counts and flags. `gpus` counts whole GPUs; a share of one GPU has
    `gpus` 1 and `gpu_milli` below 1000; with `mig_profile`, `gpus` counts slices. `gpu_milli` is 1000 for whole GPUs.
    `assumed` counts the entries filled from defaults, by column.
    """

    source: str
    job_id: Texts
    tenant: Texts
    user: Texts
    name: Texts
    submit_s: Floats
    duration_s: Floats
    gpus: Ints
    nodes: Ints
    status: Texts
    kind: Texts
    gpu_type: Texts
    limit_s: Floats
    priority: Ints
    slo_class: Texts
    preemptible: Flags
    min_gpus: Ints
    gpu_milli: Ints
    mig_profile: Texts
    gpu_memory_gib: Floats
    cpus: Floats
    memory_mib: Ints
    topology: Texts
    checkpoint_interval_s: Floats
    checkpoint_gib: Floats
    restart_s: Floats
    preemption_delay_s: Floats
    checkpoint_on_request: Flags
    trust: Texts
    share: Texts
    image: Texts
    peak_memory_gib: Floats
    assumed: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    rows: int = 0
    unusable_by_reason: Mapping[str, int] = field(default_factory=dict)
    first_unusable: Mapping[str, str] = field(default_factory=dict)
    start_s: float | None = None  # the first submit since 1970; None where the file's times do not count from 1970
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def unusable(self) -> int:
        """Unusable rows of the selected tenants."""
        return sum(self.unusable_by_reason.values())

    @property
    def gpu_share(self) -> Floats:
        """GPUs of each job as a number: whole GPUs, or the share of one."""
        return self.gpus * (self.gpu_milli / 1000.0)

    @property
    def total_gpu_s(self) -> float:
        """GPU-seconds of all jobs, shares counted as shares (a MIG slice counts as a GPU here)."""
        return float(np.sum(self.gpu_share * self.duration_s))

    @property
    def span_s(self) -> float:
        """Seconds from the first submit to the last."""
        return float(self.submit_s[-1]) if len(self) else 0.0

    def codes(self, column: str) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
        """Integer codes of a text column and the names they stand for, names in sorted order."""
        names, codes = np.unique(getattr(self, column).astype(str), return_inverse=True)
        return codes.astype(np.int32), tuple(names.tolist())

    def words(self, column: str) -> Texts:
        """A column beside those of a job file as text, "" if it is empty or absent."""
        values = self.extra.get(column, np.full(len(self), "", object))
        found: Texts = np.array([value if isinstance(value, str) else "" for value in values.tolist()], object)
        return found

    def amounts(self, column: str) -> Floats:
        """A column beside those of a job file as numbers, NaN if it is empty or absent."""
        values = self.extra.get(column)
        return np.full(len(self), np.nan) if values is None else np.array(values, np.float64)

    def take(self, index: npt.NDArray[Any]) -> JobTrace:
        """The jobs at `index` (positions or a mask), times unchanged; the counts of the file are kept."""
        picked = {name: getattr(self, name)[index] for name in BY_NAME}
        return replace(self, **picked, extra={name: values[index] for name, values in self.extra.items()})

    def to_frame(self) -> pd.DataFrame:
        """The jobs as a table in the file format: unknown is empty, a share is written as `gpu_milli`."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for column in JOB_COLUMNS:
            values = getattr(self, column.name)
            if column.kind == "text":
                given = values != ""
                cells: Any = np.where(given, values, None)
            elif column.kind == "amount" and column.name != "gpus":
                given, cells = ~np.isnan(values), values
            else:
                given = values >= 0
                if column.name == "gpu_milli":
                    given = values != 1000
                cells = pd.array(np.where(given, values, 0).astype(np.int64), dtype="Int64")
                cells[~given] = pd.NA
            if column.required or given.any():
                columns[column.name] = cells
        return pd.DataFrame(columns | dict(self.extra))
