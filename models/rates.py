"""Measured rates of each service, minute by minute: rows by name on one regular step, bounded in time and names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64
from models.demand import tidy

KEPT_DAYS = 8
"""Days that are kept: a week and the day that is compared with it."""

MOST_CELLS = 24_000_000
"""Values kept in all (190 MB): with many services fewer days are kept, at least `LEAST_KEPT_DAYS`."""

LEAST_KEPT_DAYS = 3

MOST_SERIES = 20_000
"""Names kept at once; beyond that those seen longest ago lose their rows."""


class Rates:
    """Rows of values on a step of `step_s`; the newest column is that of `step`."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.names: list[str] = []
        self.step = -1
        """Number of the newest step, in steps since time zero; -1 before the first."""
        self._row: dict[str, int] = {}
        self._values = np.full((0, 256), np.nan)
        self._used = 0
        self._seen = np.zeros(0, np.int64)

    @property
    def values(self) -> F64:
        """Values [series, steps], oldest first; the last column is that of `step`."""
        return self._values[:, : self._used]

    @property
    def kept_steps(self) -> int:
        """Maximum number of steps kept."""
        day = round(86_400.0 / self.step_s)
        days = min(KEPT_DAYS * day, MOST_CELLS // max(len(self.names), 1))
        return int(max(days, LEAST_KEPT_DAYS * day, 64))

    def rows(self, names: Sequence[str]) -> tuple[NDArray[np.int64], list[int], int]:
        """(rows of `names`, rows just reassigned to another name, number of rows added)."""
        new = [name for name in dict.fromkeys(names) if name not in self._row]
        free = max(0, len(self.names) + len(new) - MOST_SERIES)
        wanted = {self._row[name] for name in names if name in self._row}
        oldest = (
            [row for row in np.argsort(self._seen, kind="stable").tolist() if row not in wanted][:free] if free else []
        )
        reused = []
        for name, row in zip(new, oldest, strict=False):
            del self._row[self.names[row]]
            self.names[row], self._row[name] = name, row
            self._values[row] = np.nan
            reused.append(row)
        added = new[len(reused) :]
        for name in added:
            self._row[name] = len(self.names)
            self.names.append(name)
        if added:
            self._values = np.vstack([self._values, np.full((len(added), self._values.shape[1]), np.nan)])
            self._seen = np.concatenate([self._seen, np.full(len(added), self.step)])
        return np.array([self._row[name] for name in names], np.int64), reused, len(added)

    def find(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Rows of `names`; -1 for a name without one."""
        return np.array([self._row.get(name, -1) for name in names], np.int64)

    def advance(self, step: int) -> int:
        """Make `step` the newest column, with unknown ones in between; returns how many were added (0: not newer)."""
        if self.step < 0:
            self.step, self._used = step, 1
            return 1
        more = step - self.step
        if more <= 0:
            return 0
        kept = self.kept_steps
        if more >= kept:  # the remaining columns are too old to be useful
            self._values[:] = np.nan
            self._used, self.step = 1, step
            return more
        day = max(1, round(86_400.0 / self.step_s))
        if self._used + more > kept + max(kept // 4, day):
            # whole days: models fitted before rely on the time of day of a column
            drop = (self._used + more - kept) // day * day
            self._values[:, : self._used - drop] = self._values[:, drop : self._used].copy()
            self._used -= drop
        if self._used + more > self._values.shape[1]:
            wider = np.full((len(self._values), max(2 * self._values.shape[1], self._used + more)), np.nan)
            wider[:, : self._used] = self._values[:, : self._used]
            self._values = wider
        self._values[:, self._used : self._used + more] = np.nan
        self._used, self.step = self._used + more, step
        return more

    def put(self, rows: NDArray[np.int64], steps: NDArray[np.int64], values: F64) -> None:
        """Values of `rows` at `steps`; values outside the kept time, or that cannot be a demand, are dropped."""
        place = self._used - 1 - (self.step - steps)
        known = tidy(values)
        inside = (place >= 0) & (place < self._used) & ~np.isnan(known)
        self._values[rows[inside], place[inside]] = known[inside]
        self._seen[rows[inside]] = self.step
