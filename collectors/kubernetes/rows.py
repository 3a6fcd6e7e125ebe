"""A table with rows changed one by one, copied out whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from autopilot.core.model.snapshot import DTYPES, UNSTATED, MemberTable, empty, make

FIRST_ROOM = 256


class RowTable:
    """Rows of one snapshot table by key. A dropped row is replaced by the last one."""

    def __init__(self, table: type[Any], unstated: Mapping[str, Any] | None = None) -> None:
        """`unstated`: values of the columns omitted by a row, before those of the snapshot."""
        self._table = table
        self._columns: dict[str, np.ndarray[Any, Any]] = {}
        self._unstated: dict[str, Any] = {}
        for each in fields(table):
            dtype = DTYPES.get(str(each.type), np.int32)
            value = (unstated or {}).get(each.name, UNSTATED.get(each.name, "" if dtype is object else 0))
            self._columns[each.name] = np.full(FIRST_ROOM, value, dtype)
            self._unstated[each.name] = value
        self._keys: list[Hashable] = []
        self._rows: dict[Hashable, int] = {}
        self._frozen: Any = None
        self.layout = 0  # rises with rows that come, go or move

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._keys)

    def put(self, key: Hashable, values: Mapping[str, Any]) -> None:
        """Add or replace the row of `key`. All rows state the same columns; the others keep their unstated value."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._keys)
            self._keys.append(key)
            self.layout += 1
            if row == len(self._columns[next(iter(self._columns))]):
                self._columns = {name: self._wider(name, column) for name, column in self._columns.items()}
        columns = self._columns
        for name, value in values.items():
            columns[name][row] = value
        self._frozen = None

    def _wider(self, name: str, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        more = np.full(len(column), self._unstated[name], column.dtype)
        return np.concatenate([column, more])

    def drop(self, key: Hashable) -> None:
        """Remove the row of `key`, if there is one."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        self.layout += 1
        last = self._keys.pop()
        if last != key:
            for column in self._columns.values():
                column[row] = column[len(self._keys)]
            self._keys[row] = last
            self._rows[last] = row
        self._frozen = None

    def row(self, key: Hashable) -> int:
        """The row of `key`; -1: none."""
        return self._rows.get(key, -1)

    def value(self, key: Hashable, column: str, *, unknown: Any) -> Any:
        """One value of the row of `key`; `unknown` without a row."""
        row = self._rows.get(key)
        return unknown if row is None else self._columns[column][row]

    def values(self, key: Hashable) -> dict[str, Any]:
        """The row of `key`; {} without a row."""
        row = self._rows.get(key)
        return {} if row is None else {name: column[row] for name, column in self._columns.items()}

    def freeze(self) -> Any:
        """The table as it is now; the same object as long as nothing changes."""
        if self._frozen is None:
            count = len(self._keys)
            self._frozen = self._table(**{name: column[:count].copy() for name, column in self._columns.items()})
        return self._frozen


def member_table(members: Mapping[str, Sequence[Mapping[str, Any]]], row_of: Callable[[str], int]) -> MemberTable:
    """The table of unequal members, by the key of their gang. `row_of`: the row of a gang."""
    rows = [{**member, "workload": row_of(key)} for key, found in members.items() for member in found]
    if not rows:
        nothing: MemberTable = empty(MemberTable)
        return nothing
    table: MemberTable = make(MemberTable, **{name: [each[name] for each in rows] for name in rows[0]})
    return table
