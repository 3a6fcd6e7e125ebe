"""Output paths: a plain file is replaced whole, a link is followed, a device or pipe is written to and stays."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.files import check_output, lock_beside, put_in_place, replace_file, write_bytes, write_text
from autopilot.records.memory import FileMemoryStore, memory_text
from simulator.traces.table_files import write_table

STDOUT = """
import sys
from pathlib import Path
from autopilot.files import write_bytes
print("before")
write_bytes(b"content\\n", Path(sys.argv[1]))
print("after")
"""


def left_over(folder: Path) -> list[str]:
    """Temporary files in a folder."""
    return [path.name for path in folder.iterdir() if ".part-" in path.name]


def test_a_plain_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    """A writer that breaks leaves the old content, and nothing beside it."""
    path = tmp_path / "out.json"
    write_bytes(b"old", path)
    path.chmod(0o640)

    def breaks(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"out\.json: cannot be written: No space left"):
        replace_file(path, breaks)
    assert (path.read_bytes(), left_over(tmp_path)) == (b"old", [])
    write_bytes(b"new", path)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The link stays a link, over several steps too, and what it leads to is made where it is missing."""
    (tmp_path / "far").mkdir()
    (tmp_path / "second").symlink_to("far/out.csv")
    link = tmp_path / "first.csv"
    link.symlink_to("second")
    for number in (1, 2):
        write_table(pd.DataFrame({"a": [number]}), link)
        assert link.is_symlink()
        assert (tmp_path / "second").is_symlink()
        assert (tmp_path / "far" / "out.csv").read_text() == f"a\n{number}\n"
    memory = tmp_path / "memory.json"
    memory.symlink_to("far/memory.json")
    FileMemoryStore(memory).save(ControllerMemory())
    assert memory.is_symlink()
    found = FileMemoryStore(memory).load()
    assert found is not None
    assert memory_text(found) == memory_text(ControllerMemory())


@pytest.mark.parametrize("redirected", [False, True])
def test_standard_output_is_written_to(tmp_path: Path, *, redirected: bool) -> None:
    """A pipe or a file behind it, in the order of what is printed; the file is not replaced."""
    out = tmp_path / "out.txt"
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", str(tmp_path / "link")):
        if name.startswith(str(tmp_path)) and not Path(name).is_symlink():
            Path(name).symlink_to("/dev/stdout")
        command = [sys.executable, "-c", STDOUT, name]
        if redirected:
            with out.open("wb") as file:
                subprocess.run(command, check=True, stdout=file, timeout=60)
            said = out.read_bytes()
        else:
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout
        assert said == b"before\ncontent\nafter\n", name


def test_a_device_stays_a_device() -> None:
    """/dev/full refuses in one message, /dev/null takes all."""
    with pytest.raises(InputError, match=r"^/dev/full: cannot be written: No space left on device$"):
        write_bytes(b"x" * 100, Path("/dev/full"))
    write_bytes(b"x" * 100, Path("/dev/null"))
    write_text("x", Path("/dev/null"))
    for name in ("/dev/full", "/dev/null"):
        assert stat.S_ISCHR(Path(name).stat().st_mode)
    assert not [path for path in Path("/dev").iterdir() if ".part-" in path.name]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """What reads it gets all; without a reader it is refused at once, and it stays a pipe."""
    pipe = tmp_path / "rows.csv"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="no process reads from this pipe"):
        write_bytes(b"x", pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    content = b"0123456789" * 100_000  # more than a pipe holds
    writer = threading.Thread(target=write_bytes, args=(content, pipe))
    writer.start()
    select.select([reader], [], [])  # before that a read would find no writer, and end
    with os.fdopen(reader, "rb") as file:
        assert file.read() == content
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    """Folders, folders that are not there, links in a circle."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "hang").symlink_to("gone/out")
    for name, words in (
        (".", "is a folder"),
        ("gone/out.json", "the folder .* does not exist"),
        ("hang", "the folder .* does not exist"),
        ("a", "cannot be written"),
    ):
        with pytest.raises(InputError, match=f"^--json: .*{words}"):
            check_output(tmp_path / name, "--json")
    check_output(Path("/dev/stdout"), "--json")
    check_output(Path("/dev/full"), "--json")
    with pytest.raises(InputError, match="pipe or a device"):
        FileMemoryStore("/dev/null")


def test_a_page_goes_through_a_link(tmp_path: Path) -> None:
    """As the report puts its files in place."""
    (tmp_path / "index.html").symlink_to("real.html")
    (tmp_path / "new").write_bytes(b"page")
    put_in_place(tmp_path / "new", tmp_path / "index.html")
    assert (tmp_path / "real.html").read_bytes() == b"page"
    assert (tmp_path / "index.html").is_symlink()


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path: Path) -> None:
    """Who comes second is told; after the first has ended, the place is free."""
    path = tmp_path / "x.journal"
    first = lock_beside(path)
    with pytest.raises(InputError, match="another process writes to this file"):
        lock_beside(path)
    first.free()
    first.free()
    assert list(tmp_path.iterdir()) == []
    lock_beside(path).free()
