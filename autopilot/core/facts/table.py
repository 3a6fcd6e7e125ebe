"""Facts: values that follow from others, each declared once as a row of a table.

Theory of operation. A row names a plain function and its inputs, which are rows above it. So there is no cycle, and
mypy checks the inputs against the parameters of the function. The first rows of a table are roots: parts of the table's
own members.

A fact is computed at its first use. `Kept` remembers it with its inputs. The next table with the same `Kept` takes the
value over while every input is the same object (a number: an equal one), in the same tick or in a later one. It never
changes a value, only the time for it. Three rules follow:

- A function reads nothing but its arguments, and changes neither them nor later its result.
- Roots are as narrow as the functions allow: a fact of the queues stays while the workloads change.
- State changed by a tick as it plans (the what-if, quota, the plan) is no fact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, cast

Value = TypeVar("Value")
Inputs = TypeVarTuple("Inputs")

_NUMBERS = frozenset({bool, int, float})


class Kept:
    """The last value of each fact, with its inputs. Its owner is the caller; without one, nothing is kept."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.values: dict[Fact, tuple[tuple[Any, ...], Any]] = {}


class Table:
    """The base of a table of facts. A subclass is a dataclass with `kept`, and with rows without annotations."""

    if TYPE_CHECKING:
        kept: Kept


class Fact:
    """One row: read as an attribute of the table, it is its value."""

    __slots__ = ("function", "inputs", "name")

    def __init__(self, function: Callable[..., Any], inputs: tuple[Fact, ...]) -> None:
        """See `fact`."""
        self.function, self.inputs, self.name = function, inputs, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, table: Table | None, owner: type | None = None) -> Any:
        """The value, computed if it is not kept; the row itself for the class."""
        if table is None:
            return self
        inputs = tuple(getattr(table, each.name) for each in self.inputs)
        before = table.kept.values.get(self)
        if before is not None and all(map(_same, before[0], inputs)):
            value = before[1]
        else:
            value = self.function(*inputs)
            table.kept.values[self] = (inputs, value)
        table.__dict__[self.name] = value  # found before this method from now on
        return value


class Root(Fact):
    """A row read from the table's own members."""

    __slots__ = ()

    def __get__(self, table: Table | None, owner: type | None = None) -> Any:
        """The part of the table named by it."""
        if table is None:
            return self
        value = table.__dict__[self.name] = self.function(table)
        return value


def fact(function: Callable[[*Inputs], Value], *inputs: *Inputs) -> Value:
    """A row of a table: `function` of the values of `inputs`, rows above it."""
    return cast("Value", Fact(function, cast("tuple[Fact, ...]", inputs)))


def root(read: Callable[[Any], Value]) -> Value:
    """A row that reads a part of the table's own members."""
    return cast("Value", Root(read, ()))


def rows_of(table: type) -> dict[str, Fact]:
    """The facts of a table by name, without its roots, those of its bases first; none of another class."""
    return {
        name: row
        for base in reversed(table.__mro__)
        for name, row in vars(base).items()
        if isinstance(row, Fact) and not isinstance(row, Root)
    }


def _same(before: object, now: object) -> bool:
    return before is now or (before.__class__ in _NUMBERS and before.__class__ is now.__class__ and before == now)
