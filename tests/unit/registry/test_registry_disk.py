"""The registry on its disk: what goes first when it is full, and what is never dropped on doubt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.registry import Registry, RegistryError, pack
from tests.kits.registry_kit import content, manifest, registry, stocked

ROOT = Path(__file__).resolve().parents[3]


def test_gc_keeps_what_serves_and_the_newest(tmp_path: Path) -> None:
    """What is dropped keeps its manifest as long as a kept version descends from it."""
    shelf, names = stocked(tmp_path, 6)
    stray = tmp_path / "blobs" / "aa" / "left.skops.123.partial"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"half")
    before = shelf.used_bytes()
    planned, freed = shelf.gc(keep=2, dry_run=True)
    assert shelf.used_bytes() == before
    dropped, _ = shelf.gc(keep=2)
    assert dropped == planned
    assert len(dropped) == 4
    assert freed == before - shelf.used_bytes()
    assert not stray.exists()
    entries, _ = shelf.entries("bursts")
    assert [each.stored for each in entries] == [True, True, False, False, False, False]
    assert shelf.rollback("bursts", by="me", why="").current == names[4]
    with pytest.raises(RegistryError, match="must be 1 or more"):
        shelf.gc(keep=0)


def blobs(shelf: Registry) -> set[str]:
    """Artifacts that are there."""
    return {path.stem for path in (shelf.folder / "blobs").glob("*/*.skops")}


def test_gc_keeps_what_serves_in_place_of_a_damaged_one(tmp_path: Path) -> None:
    """The current artifact was changed, so the version before serves: it is not the one to go."""
    shelf, names = stocked(tmp_path, 4)
    for name in names[2:]:
        shelf.blob_path(shelf.manifest("bursts", name).artifact).write_bytes(b"changed")
    shelf.gc(keep=1)
    served = shelf.serve("bursts")
    assert served.manifest is not None
    assert served.manifest.version == names[1]


def test_gc_drops_nothing_on_doubt(tmp_path: Path) -> None:
    """Whose an artifact is that no readable manifest names is not known, nor what served by a damaged record."""
    shelf, names = stocked(tmp_path, 5)
    artifacts = [shelf.manifest("bursts", name).artifact for name in names]
    place = tmp_path / "models" / "bursts" / f"{names[4]}.json"
    whole = place.read_bytes()
    place.write_bytes(whole[:50])
    shelf.gc(keep=1)
    assert artifacts[4] in blobs(shelf)
    place.write_bytes(whole)
    assert shelf.load("bursts", names[4])
    pointer = tmp_path / "current" / "bursts.json"
    record = pointer.read_bytes()
    pointer.write_bytes(b"{")
    before = blobs(shelf)
    assert shelf.gc(keep=1) == ([], 0)
    assert blobs(shelf) == before
    pointer.write_bytes(record)
    assert shelf.gc(keep=1)[0]


def test_a_folder_that_cannot_be_looked_into_is_not_an_empty_one(tmp_path: Path) -> None:
    """Nothing is listed as absent, nothing is dropped, and serving goes on at the floor with the reason."""
    shelf, _ = stocked(tmp_path, 3)
    before = blobs(shelf)
    (tmp_path / "models").rename(tmp_path / "away")
    (tmp_path / "models").write_text("a file, where a folder belongs")
    for look in (lambda: shelf.entries("bursts"), lambda: shelf.gc(keep=1)):
        with pytest.raises(RegistryError, match="models/bursts: cannot be read"):
            look()
    assert blobs(shelf) == before
    (tmp_path / "current").rename(tmp_path / "gone")
    (tmp_path / "current").write_text("a file too")
    served = shelf.serve("bursts")
    assert served.manifest is None
    assert "cannot be read" in served.refused[0][1]


def test_two_rollbacks_at_once_are_one_step(tmp_path: Path) -> None:
    """Who saw a version serve goes back from that one, and not from what somebody else has made of it."""
    shelf, names = stocked(tmp_path, 4)
    assert shelf.rollback("bursts", by="ann", why="pages", expected=names[3]).current == names[2]
    with pytest.raises(RegistryError, match=f"{names[2][:12]} serves now, no longer {names[3][:12]}"):
        shelf.rollback("bursts", by="ben", why="pages", expected=names[3])
    assert shelf.pointer("bursts").current == names[2]


def test_a_full_quota_makes_room_or_refuses(tmp_path: Path) -> None:
    """Old versions go first; what serves is never given up for a new one."""
    one = len(pack(content(0, rows=3000)))
    shelf = registry(tmp_path, quota_mib=4.5 * one / 1024 / 1024)
    rng = np.random.default_rng(0)

    def make(number: int, rows: int = 3000) -> dict[str, Any]:
        return {"model": "test/1", "weights": rng.random(rows), "number": number}

    shelf.quota_bytes = int(4.5 * (len(pack(make(0))) + 2000))
    first = shelf.put(make(0), manifest())
    shelf.promote("bursts", first.version, by="me", why="first")
    for number in range(1, 9):
        shelf.put(make(number), manifest(seed=number))
        assert shelf.used_bytes() <= shelf.quota_bytes
    assert shelf.serve("bursts").content is not None
    assert len(list((tmp_path / "blobs").glob("*/*.skops"))) <= 4
    before = shelf.used_bytes()
    with pytest.raises(RegistryError, match="does not fit"):
        shelf.put(make(99, rows=30_000), manifest(seed=99))
    assert shelf.used_bytes() <= before
    assert shelf.serve("bursts").content is not None


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """The system refuses to write on (here: a limit on the size of files); what served serves, no part is left."""
    shelf, names = stocked(tmp_path, 2)
    script = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from tests.kits.registry_kit import manifest, registry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
model = {"model": "test/1", "weights": np.random.default_rng(0).random(5000)}
try:
    registry(Path(sys.argv[1])).put(model, manifest(seed=9))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.startswith("RegistryError: ")
    assert "(File too large: free some space, or run `autopilot models gc`); nothing was changed" in done.stderr
    assert sorted(shelf.versions("bursts")) == sorted(names)
    served = shelf.serve("bursts")
    assert served.manifest is not None
    assert served.manifest.version == names[1]
    assert not list(tmp_path.rglob("*.partial"))


def test_a_folder_that_cannot_be_a_registry_is_refused(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(RegistryError, match="cannot be written"):
        registry(tmp_path / "file").put(content(), manifest())
