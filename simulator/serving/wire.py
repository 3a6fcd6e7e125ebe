"""The messages between a simulated cluster and its controller, as msgpack.

Records travel as they are; a numpy column travels with its type, shape and bytes. Both sides run the same version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from autopilot.core.model.records import Batch
from autopilot.records.variants import TABLES, decoded

MEDIA_TYPE = "application/msgpack"
_TEXTS, _NUMBERS = 1, 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock of a simulated cluster. `run` names the run: another one has another clock and other objects."""

    run: str
    now_s: float
    speed: float
    scenario: str
    start_s: float | None = None  # seconds since 1970 at virtual time 0; None: the scenario has no dates


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """The cluster at one instant.

    `mark` is the place after the ended and deleted objects that the batches report; the next request that carries it
    confirms them. `inventory` numbers the inventory; it is left out of the batch where the caller has that number.
    """

    run: str
    now_s: float
    revision: int
    mark: tuple[int, int]
    inventory: int
    batches: tuple[Batch, ...]


def encode(message: Any) -> bytes:
    """A record, or a tree of records, as bytes."""
    return msgspec.msgpack.encode(message, enc_hook=_plain)


def decode(data: bytes, kind: type[T]) -> T:
    """The inverse of `encode`. Raises `ValueError` for anything that is not a message of that kind."""
    return msgspec.msgpack.decode(data, type=kind, ext_hook=_column, dec_hook=_record)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return msgspec.msgpack.Ext(_TEXTS, msgspec.msgpack.encode(value.tolist()))
        packed = [value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()]
        return msgspec.msgpack.Ext(_NUMBERS, msgspec.msgpack.encode(packed))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _record(kind: type, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if kind not in TABLES:
        raise ValueError(f"{kind} is not a {type(value).__name__}")
    return decoded(kind, value)


def _column(code: int, data: memoryview) -> Any:
    if code == _TEXTS:
        items = msgspec.msgpack.decode(data, type=list[str])
        texts = np.empty(len(items), object)
        texts[:] = items
        return texts
    kind, shape, raw = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    if np.dtype(kind).hasobject:
        raise ValueError(f"a column of type {kind!r} is not accepted")
    return np.frombuffer(raw, np.dtype(kind)).reshape(shape)
