"""The sums of the segments by owner, in the periods of a calendar: the source of prices, bills and FOCUS rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from autopilot.core.model.errors import InputError
from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, TICKS_PER_S
from autopilot.metering.segments import Store

if TYPE_CHECKING:
    import pandas as pd

GRAINS_PER_GPU_H = GRAINS_PER_GPU_S * 3600
OWNER = ("kind", "tenant", "queue", "gpu_model", "profile", "slo_class", "pool", "topology")
"""Text columns of every sum; others of `amounts.KEYS` are asked for."""


@dataclass(frozen=True, slots=True)
class Period:
    """A time of a store, in 1/1,024 s."""

    begin: int
    end: int

    @property
    def span_s(self) -> float:
        """Its length."""
        return (self.end - self.begin) / TICKS_PER_S


def period_of(store: Store, since: int | None = None, until: int | None = None) -> Period:
    """The part of the asked time within the segments. Raises `InputError` if that is nothing."""
    if not store.segments:
        raise InputError(f"{store.folder}: no interval is written yet; ask again later, or after the run has ended")
    begin, end = store.segments[0].begin, store.segments[-1].end
    found = Period(begin if since is None else max(begin, since), end if until is None else min(end, until))
    if found.begin >= found.end:
        raise InputError(f"{store.folder}: nothing was metered in this time; leave out --since and --until to see all")
    return found


def lines_of(store: Store, edges: Sequence[int], more: Sequence[str] = ()) -> pd.DataFrame:
    """The sums between each two consecutive `edges` (1/1,024 s), by `OWNER` and `more` text columns.

    Columns: `begin` and `end` of the period, the texts, and `AMOUNTS` as whole numbers (DuckDB adds in 128 bits). A row
    across an edge is divided in proportion to time: nothing is lost. Raises `InputError` for a damaged segment.
    """
    import pandas as pd

    wanted = [str(each.path) for each in store.segments if each.end > edges[0] and each.begin < edges[-1]]
    texts = [*OWNER, *more]
    if not wanted:
        return pd.DataFrame(columns=["begin", "end", *texts, *AMOUNTS])
    there = {row[0] for row in _asked("DESCRIBE SELECT * FROM read_parquet($files, union_by_name = true)", wanted)}
    names = ", ".join(f"coalesce({name}, '') AS {name}" if name in there else f"'' AS {name}" for name in texts)
    amounts = [f"CAST(coalesce(sum({_within(name)}), 0) AS BIGINT)" if name in there else "0" for name in AMOUNTS]
    sums = ", ".join(f"{each} AS {name}" for each, name in zip(amounts, AMOUNTS, strict=True))
    query = (
        "WITH cut AS (SELECT unnest($low) AS low, unnest($high) AS high) "  # noqa: S608 - names of this module
        f'SELECT cut.low AS "begin", cut.high AS "end", {names}, {sums} '
        "FROM read_parquet($files, union_by_name = true) AS r "
        'JOIN cut ON r."begin" < cut.high AND r."end" > cut.low GROUP BY ALL ORDER BY ALL'
    )
    rows = _asked(query, wanted, low=list(edges[:-1]), high=list(edges[1:]))
    return pd.DataFrame(rows, columns=["begin", "end", *texts, *AMOUNTS])


def _within(name: str) -> str:
    """The part of an amount within a period, in SQL: differences of rounded-down sums, exact in total."""

    def upto(at: str) -> str:
        return f'(r.{name}::HUGEINT * ({at} - r."begin")) // (r."end" - r."begin")'

    whole = 'r."begin" >= cut.low AND r."end" <= cut.high'
    last, first = upto('least(r."end", cut.high)'), upto('greatest(r."begin", cut.low)')
    return f"CASE WHEN {whole} THEN r.{name} ELSE {last} - {first} END"


def _asked(query: str, files: Sequence[str], **values: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as asked:
        try:
            return asked.execute(query, {"files": list(files), **values}).fetchall()
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise InputError(f"metering cannot be read: {why}; restore the segment, or remove it") from error


def missing_s(store: Store, period: Period) -> float:
    """Time of a period without a segment (s)."""
    lacks = sum(max(min(end, period.end) - max(begin, period.begin), 0) for begin, end in store.holes)
    return lacks / TICKS_PER_S


def cut(edges: Sequence[int], period: Period) -> list[int]:
    """Edges with those outside a period replaced by its ends."""
    return [period.begin, *(at for at in edges if period.begin < at < period.end), period.end]
