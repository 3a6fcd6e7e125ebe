"""Inference requests for the simulator: the records, and the files that they come from.

A request is an arrival time, a service and two token counts. Files follow the request format (`t_s, service,
input_tokens, output_tokens, latency_s?`, extra columns kept). `simulator.inference.synthetic_requests` generates
synthetic ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.errors import InputError
from simulator.traces.own_columns import own_requests
from simulator.traces.table_files import read_table, require_columns

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLUMNS = ("t_s", "service", "input_tokens", "output_tokens")
MAX_TOKENS = 10_000_000  # ten times the longest context window on offer: a larger value is an invalid row
MAX_TIME_S = 10 * 365 * 86400.0  # a file of ten years; larger values are calendar times


class Arrivals(NamedTuple):
    """Requests of one service, `n` each, in order of arrival."""

    t_s: Floats
    input_tokens: Ints
    output_tokens: Ints


class ArrivalSource(Protocol):
    """Returns the requests of one service once, in time order."""

    def upto(self, to_s: float) -> Arrivals:
        """Every request with `t_s <= to_s` that was not returned before."""
        ...


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of all services by column, sorted by `t_s` (equal times keep the file's order).

    `service` holds indices into `services`; `latency_s` is NaN where the file has none; `extra` keeps the columns that
    are not part of the format. `unusable_by_reason` counts the dropped rows, `blanked_by_reason` the values read as
    unknown.
    """

    t_s: Floats
    service: Ints
    services: tuple[str, ...]
    input_tokens: Ints
    output_tokens: Ints
    latency_s: Floats
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)
    unusable_by_reason: dict[str, int] = field(default_factory=dict)
    blanked_by_reason: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.t_s)

    def take(self, rows: NDArray[Any]) -> Requests:
        """The requests at `rows` (indices or mask), with the same services and counts."""
        return replace(
            self,
            t_s=self.t_s[rows],
            service=self.service[rows],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            latency_s=self.latency_s[rows],
            extra={name: column[rows] for name, column in self.extra.items()},
        )

    def arrivals(self, service: str) -> Arrivals:
        """The requests of one service; raises `InputError` for a name that is not in `services`."""
        if service not in self.services:
            known = ", ".join(self.services[:8])
            raise InputError(f"service {service!r} has no requests; the requests name: {known}")
        rows = self.service == self.services.index(service)
        return Arrivals(self.t_s[rows], self.input_tokens[rows], self.output_tokens[rows])


class ListedArrivals:
    """An `ArrivalSource` over a known list of requests."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals, self._next = arrivals, 0

    def upto(self, to_s: float) -> Arrivals:
        """Every request with `t_s <= to_s` that was not returned before."""
        first = self._next
        self._next = first + int(np.searchsorted(self._arrivals.t_s[first:], to_s, side="right"))
        return Arrivals._make(column[first : self._next] for column in self._arrivals)


def read_requests(path: str | Path, columns: Mapping[str, str] | None = None) -> Requests:
    """Requests from a Parquet or CSV file (`.parquet`, `.pq`, `.csv`, `.csv.gz`).

    Files of other programs are read too (`simulator.traces.own_columns`); `columns` maps their names to ours. Unusable
    rows are dropped and counted in `unusable_by_reason`. Raises `InputError` naming file, column and row when the file
    cannot be used at all.
    """
    path = Path(path)
    own = own_requests(read_table(path), path, columns or {})
    frame = own.frame
    require_columns(frame, COLUMNS, path, "a request file")
    t_s = _numbers(frame, "t_s", path)
    tokens = {name: _numbers(frame, name, path) for name in ("input_tokens", "output_tokens")}
    names = frame["service"]
    unusable, counts = _unusable_rows(t_s, names.isna().to_numpy() | (names == "").to_numpy(bool), tokens)
    rows = np.flatnonzero(~unusable)
    if len(rows) == 0:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in counts.items())
        raise InputError(
            f"{path}: all {len(frame)} rows are unusable ({reasons}); first: row 1, t_s = "
            f"{frame['t_s'].iloc[0]}, service = {frame['service'].iloc[0]!r}, input_tokens = "
            f"{frame['input_tokens'].iloc[0]}, output_tokens = {frame['output_tokens'].iloc[0]}"
        )
    rows = rows[np.argsort(t_s[rows], kind="stable")]
    return replace(_from_frame(frame, path, rows, t_s, tokens, counts), notes=tuple(own.notes))


def _from_frame(
    frame: pd.DataFrame,
    path: Path,
    rows: NDArray[np.intp],
    t_s: Floats,
    tokens: dict[str, Floats],
    counts: dict[str, int],
) -> Requests:
    import pandas as pd

    codes, services = pd.factorize(frame["service"].iloc[rows].astype(str), sort=True)
    blanked: dict[str, int] = {}
    latency_s = np.full(len(rows), np.nan)
    if "latency_s" in frame.columns:
        latency_s = _numbers(frame, "latency_s", path)[rows]
        wrong = (latency_s < 0) | np.isinf(latency_s)
        if wrong.any():
            blanked["latency_s negative or infinite"] = int(wrong.sum())
            latency_s = np.where(wrong, np.nan, latency_s)
    known = {*COLUMNS, "latency_s"}
    return Requests(
        t_s=t_s[rows],
        service=codes.astype(np.int64),
        services=tuple(str(name) for name in services),
        input_tokens=tokens["input_tokens"][rows].astype(np.int64),
        output_tokens=tokens["output_tokens"][rows].astype(np.int64),
        latency_s=latency_s,
        extra={str(c): np.asarray(frame[c].iloc[rows]) for c in frame.columns if c not in known},
        unusable_by_reason=counts,
        blanked_by_reason=blanked,
    )


def _numbers(frame: pd.DataFrame, name: str, path: Path) -> Floats:
    """A column as floats, NaN where it holds no number; `InputError` for dates and booleans."""
    import pandas as pd

    column = frame[name]
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise InputError(f"{path}: column {name!r} holds dates; write seconds from the start of the file")
    if pd.api.types.is_bool_dtype(column):
        raise InputError(f"{path}: column {name!r} holds true/false, not numbers")
    try:
        numbers = pd.to_numeric(column, errors="coerce")
    except TypeError:
        raise InputError(f"{path}: column {name!r} holds {column.iloc[0]!r} (row 1), not numbers") from None
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _unusable_rows(
    t_s: Floats, no_service: NDArray[np.bool_], tokens: dict[str, Floats]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Mask of dropped rows, and their count by the first reason that applies."""
    reasons: list[tuple[str, NDArray[np.bool_]]] = [
        ("t_s missing or not a number", np.isnan(t_s)),
        ("t_s infinite", np.isinf(t_s)),
        ("t_s negative", t_s < 0),
        ("t_s beyond ten years (write seconds from the start of the file)", t_s > MAX_TIME_S),
        ("service missing", no_service),
    ]
    for name, value in tokens.items():
        reasons += [
            (f"{name} missing or not a number", np.isnan(value)),
            (f"{name} negative", value < 0),
            (f"{name} above {MAX_TOKENS}", value > MAX_TOKENS),
            (f"{name} not a whole number", value != np.floor(value)),
        ]
    unusable = np.zeros(len(t_s), dtype=bool)
    counts: dict[str, int] = {}
    for reason, wrong in reasons:
        new = wrong & ~unusable
        if new.any():
            counts[reason] = int(new.sum())
            unusable |= new
    return unusable, counts


def thin(requests: Requests, rate_scale: float, rng: np.random.Generator) -> Requests:
    """Keep each request with probability `rate_scale`, by one draw per request from `rng`.

    The caller scales the replicas with it. Thinning moves gaps towards Poisson, so a thinned trace is less bursty than
    the whole one. Raises `InputError` unless 0 < rate_scale <= 1.
    """
    if not 0 < rate_scale <= 1:
        raise InputError(f"rate-scale: {rate_scale!r} is not in (0, 1]; 0.1 keeps every tenth request")
    return requests.take(rng.random(len(requests)) < rate_scale)
