"""Tables that need more memory than there is are refused with one line: the file, and what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autopilot.core.model.errors import InputError
from simulator.traces import parquet, table_files
from simulator.traces.free_memory import free_memory_bytes


def repeated(path: Path, rows: int) -> Path:
    """A small file of many equal rows, written group by group."""
    group = pa.table({"job_id": pa.array(["same"] * 1_000_000).dictionary_encode(), "gpus": pa.array([8] * 1_000_000)})
    with pq.ParquetWriter(path, group.schema, compression="zstd") as writer:
        for _ in range(rows // 1_000_000):
            writer.write_table(group)
    return path


def test_a_file_of_millions_of_equal_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Its metadata says so: a few KiB cannot tell two million jobs apart."""
    path = repeated(tmp_path / "jobs.parquet", 2_000_000)
    with pytest.raises(InputError, match=r"jobs\.parquet: 2,000,000 rows in .* bytes: they repeat each other; write"):
        table_files.read_table(path)


def test_a_table_that_needs_more_memory_than_is_free_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names what it needs and what there is."""
    path = tmp_path / "jobs.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), path)
    monkeypatch.setattr(parquet, "free_memory_bytes", lambda: 10_000.0)
    with pytest.raises(InputError, match=r"jobs\.parquet: 1,000 rows of 1 columns need .* or raise the limit"):
        table_files.read_table(path)
    monkeypatch.setattr(parquet, "free_memory_bytes", lambda: 1e9)
    assert len(table_files.read_table(path)) == 1000


def test_a_long_text_that_all_rows_share_is_refused(tmp_path: Path) -> None:
    """Also where the column is stored as a dictionary: the file has the text once, and a table has it in each row."""
    path, text = tmp_path / "jobs.parquet", "x" * (parquet.MOST_TEXT_BYTES + 1)
    for column in (pa.array([text] * 9), pa.DictionaryArray.from_arrays(pa.array([0] * 9), pa.array([text]))):
        pq.write_table(pa.table({"tenant": column}), path)
        with pytest.raises(InputError, match=r"jobs\.parquet: column tenant: a cell of 65,537 bytes"):
            table_files.read_table(path)
    pq.write_table(
        pa.table({"tenant": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["b", "a"]))}), path
    )
    assert table_files.read_table(path)["tenant"].tolist() == ["b", "a", "b"]


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.parquet"])
def test_memory_that_is_used_up_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In any reader of tables."""

    def used_up(*_given: object) -> None:
        raise MemoryError

    path = tmp_path / name
    path.write_text("job_id\n1\n", "utf-8")
    monkeypatch.setattr(table_files, "read_csv", used_up)
    monkeypatch.setattr(table_files, "read_parquet", used_up)
    with pytest.raises(InputError, match=rf"{name}: the table does not fit into the memory"):
        table_files.read_table(path)


def test_the_least_limit_counts(tmp_path: Path) -> None:
    """That of the machine, or of the control group; `max` is none, and a file that is missing is none."""
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:      2048 kB\n", "ascii")
    assert free_memory_bytes(tmp_path, tmp_path / "none") <= 2048 * 1024
    (tmp_path / "memory.max").write_text("3000\n", "ascii")
    (tmp_path / "memory.current").write_text("1000\n", "ascii")
    assert free_memory_bytes(tmp_path, tmp_path) == 2000.0
    (tmp_path / "memory.max").write_text("max\n", "ascii")
    assert free_memory_bytes(tmp_path, tmp_path) == 2048 * 1024
