"""Parquet files, read within bounds: first the metadata, then batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autopilot.core.model.errors import InputError
from simulator.traces.delimited import MOST_COLUMNS, MOST_ROWS
from simulator.traces.free_memory import free_memory_bytes

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 400_000_000
MOST_BYTES = 4 << 30
BYTES_PER_CELL = 24
"""Memory of one cell while a table is read: Arrow's column, that of pandas, and a copy of the latter."""
FEW_ROWS, ROWS_PER_BYTE = 1_000_000, 4
"""A table of more rows than `FEW_ROWS` has at most `ROWS_PER_BYTE` of them for each byte of its file: the rows of a
trace differ, and a column that tells them apart needs more than two bits a row. The densest of the traces has 0.45."""
MOST_TEXT_BYTES = 1 << 16
"""Limit of one cell: a longer one is no name, number or time."""

_BATCH_ROWS = 65_536
GIB = float(1 << 30)


def read_parquet(path: Path) -> pd.DataFrame:
    """The table at `path`. Raises `InputError` before it uses more memory than such a table needs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as plain:
            _check_claims(path, plain)
            # texts stay dictionary codes: a long text in many rows is stored once
            texts = [each.name for each in plain.schema_arrow if _is_text(pa, each.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            table = _read(path, pa, file)
        _check_texts(path, table, texts)
        frame: pd.DataFrame = table.to_pandas()
        for name in texts:
            frame[name] = frame[name].astype(object)
    except pa.ArrowMemoryError as error:
        raise MemoryError from error
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a complete Parquet file: {reason}") from error
    return frame


def _is_text(pa: Any, kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _check_claims(path: Path, file: Any) -> None:
    about = file.metadata
    rows, columns = about.num_rows, about.num_columns
    size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if columns > MOST_COLUMNS:
        raise InputError(f"{path}: {columns:,} columns; at most {MOST_COLUMNS:,} are read")
    if rows > MOST_ROWS:
        raise InputError(f"{path}: {rows:,} rows; at most {MOST_ROWS:,} are read")
    if rows * columns > MOST_CELLS:
        raise InputError(f"{path}: {rows:,} rows of {columns:,} columns; at most {MOST_CELLS:,} cells are read")
    on_disk = path.stat().st_size
    if rows > max(FEW_ROWS, ROWS_PER_BYTE * on_disk):
        raise InputError(
            f"{path}: {rows:,} rows in {on_disk:,} bytes: they repeat each other; write each job or request once"
        )
    if size > MOST_BYTES:
        raise _too_large(path)
    needed, free = rows * columns * BYTES_PER_CELL + size, free_memory_bytes()
    if needed > free:
        raise InputError(
            f"{path}: {rows:,} rows of {columns:,} columns need about {needed / GIB:.1f} GiB of memory, and this "
            f"process may use {free / GIB:.1f} GiB; write fewer rows, or only the columns that are used, or raise the "
            "limit"
        )


def _read(path: Path, pa: Any, file: Any) -> Any:
    """All batches; memory use is monitored, because the metadata of a file may be wrong."""
    batches, before = [], pa.total_allocated_bytes()
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        batches.append(batch)
        if pa.total_allocated_bytes() - before > MOST_BYTES:
            raise _too_large(path)
    return pa.Table.from_batches(batches, file.schema_arrow).unify_dictionaries()


def _check_texts(path: Path, table: Any, names: list[str]) -> None:
    import pyarrow.compute as pc

    for name in names:
        for chunk in table.column(name).chunks:
            longest = pc.max(pc.binary_length(chunk.dictionary)).as_py() if len(chunk.dictionary) else 0
            if longest is not None and longest > MOST_TEXT_BYTES:
                raise InputError(
                    f"{path}: column {name}: a cell of {longest:,} bytes; at most {MOST_TEXT_BYTES:,} are read"
                )


def _too_large(path: Path) -> InputError:
    return InputError(
        f"{path}: more than {MOST_BYTES >> 30} GiB when unpacked; write fewer rows, or only the columns that are used"
    )
