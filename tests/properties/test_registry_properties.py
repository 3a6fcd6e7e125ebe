"""The registry under damage anywhere, and under writers that race."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopilot.registry import Registry, RegistryError
from autopilot.registry.atomic_files import locked
from tests.kits.registry_kit import LIBRARIES, content, estimator, manifest, registry, stocked

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("artifact", "manifest", "pointer")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Registry, list[str]]:
    """Two versions that served, the newer one with an estimator in it."""
    made, names = stocked(tmp_path_factory.mktemp("registry"), 1)
    newer = made.put({**content(1), "estimator": estimator()}, manifest(seed=1))
    made.promote("bursts", newer.version, by="test", why="second")
    return made, [*names, newer.version]


def place_of(made: Registry, version: str, part: str) -> Path:
    """The file of a part of a version."""
    if part == "artifact":
        return made.blob_path(made.manifest("bursts", version).artifact)
    if part == "manifest":
        return made.folder / "models" / "bursts" / f"{version}.json"
    return made.folder / "current" / "bursts.json"


def damaged(data: bytes, how: str, at: int, byte: int) -> bytes:
    """The content with a byte changed, a piece cut off, taken out or put in."""
    at = at % len(data)
    if how == "flip":
        return data[:at] + bytes([data[at] ^ (byte or 1)]) + data[at + 1 :]
    if how == "truncate":
        return data[:at]
    if how == "remove":
        return data[:at] + data[at + 1 + byte :]
    if how == "insert":
        return data[:at] + bytes([byte]) * 3 + data[at:]
    return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(PARTS),
    st.sampled_from(("flip", "truncate", "remove", "insert", "zero")),
    st.integers(0, 2**20),
    st.integers(0, 255),
)
def test_whatever_is_damaged_what_serves_is_whole(
    shelf: tuple[Registry, list[str]], part: str, how: str, at: int, byte: int
) -> None:
    """The version before serves, or the same one where the damage says the same (a space in JSON)."""
    made, names = shelf
    place = place_of(made, names[1], part)
    whole = place.read_bytes()
    try:
        place.write_bytes(damaged(whole, how, at, byte))
        served = made.serve("bursts")
        assert served.manifest is not None
        assert served.content is not None
        number = names.index(served.manifest.version)
        assert served.content["number"] == number
        np.testing.assert_array_equal(served.content["weights"], np.arange(4.0) + number)
        assert (number == 0) == bool(served.refused)
        if part == "artifact" and place.read_bytes() != whole:
            assert number == 0
    finally:
        place.write_bytes(whole)


def test_every_region_of_an_artifact_is_guarded(shelf: tuple[Registry, list[str]]) -> None:
    """A flipped bit is refused wherever it is: at 200 places from the first byte to the last."""
    made, names = shelf
    place = place_of(made, names[1], "artifact")
    whole = place.read_bytes()
    try:
        for at in np.unique(np.linspace(0, len(whole) - 1, 200).astype(int)).tolist():
            place.write_bytes(damaged(whole, "flip", at, 1))
            with pytest.raises(RegistryError, match="changed or truncated"):
                made.load("bursts", names[1])
    finally:
        place.write_bytes(whole)


WRITER = """
import sys
from pathlib import Path
from autopilot.registry import Registry, RegistryError
from tests.kits.registry_kit import LIBRARIES, content, manifest
who, folder, rounds = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
shelf = Registry(folder, libraries=LIBRARIES)
changes = 0
for number in range(rounds):
    made = shelf.put(content(1000 * who + number), manifest(seed=1000 * who + number))
    before = shelf.pointer("bursts").current
    try:
        shelf.promote("bursts", made.version, by=f"w{who}", why=str(number), expected=before)
        changes += 1
    except RegistryError as error:
        assert "judge it again" in str(error) or "no version" in str(error), error
    if number % 3 == 2:
        try:
            shelf.rollback("bursts", by=f"w{who}", why="back")
            changes += 1
        except RegistryError as error:
            assert "no version before" in str(error), error
    if number % 4 == 3:
        shelf.gc(keep=3)
    served = shelf.serve("bursts")
    assert served.content is not None, served.refused
    assert served.content["number"] == served.manifest.seed, served.manifest
print(changes)
"""


def test_racing_controllers_do_not_corrupt_the_registry(tmp_path: Path) -> None:
    """Two processes store, promote, roll back and collect at once: what serves is whole at every moment."""
    first = registry(tmp_path)
    made = first.put(content(0), manifest())
    first.promote("bursts", made.version, by="test", why="start")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(who), str(tmp_path), "8"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in range(1, 3)
    ]
    changes = 1
    for writer in writers:
        said, wrong = writer.communicate(timeout=300)
        assert writer.returncode == 0, wrong[-2000:]
        changes += int(said)
    pointer = first.pointer("bursts")
    assert not pointer.problems
    assert len(pointer.log) == changes, "no change was lost, none counted twice"
    for before, after in zip(pointer.log[:-1], pointer.log[1:], strict=True):
        assert after.before == before.version, "each change was made to what served then"
    assert pointer.log[-1].version == pointer.current
    assert len(set(pointer.serving)) == len(pointer.serving)
    served = first.serve("bursts")
    assert served.manifest is not None
    assert served.manifest.version == pointer.current
    assert not list(tmp_path.rglob("*.partial"))
    _, damage = first.entries("bursts")
    assert damage == []


def test_a_writer_that_dies_leaves_the_lock_free(tmp_path: Path) -> None:
    """Killed with the lock in hand and half a file written: the next writer goes on."""
    shelf, names = stocked(tmp_path, 2)
    script = """
import os, sys
from pathlib import Path
from autopilot.registry import atomic_files
from tests.kits.registry_kit import content, manifest, registry
os.fsync = lambda handle: os._exit(9)
registry(Path(sys.argv[1])).put(content(7), manifest(seed=7))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, timeout=120)
    assert done.returncode == 9
    assert list(tmp_path.rglob("*.partial"))
    served = shelf.serve("bursts")
    assert served.manifest is not None
    assert served.manifest.version == names[1]
    stored = shelf.put(content(7), manifest(seed=7))
    shelf.promote("bursts", stored.version, by="test", why="after the crash")
    shelf.gc()
    assert not list(tmp_path.rglob("*.partial"))
    assert shelf.pointer("bursts").current == stored.version


def test_a_lock_that_is_held_is_said_so(tmp_path: Path) -> None:
    """A writer waits its time and then says who to look for."""
    with (
        locked(tmp_path),
        pytest.raises(RegistryError, match="another process has held the registry"),
        locked(tmp_path, wait_s=0.05),
    ):
        raise AssertionError("two hold the lock")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("put", "promote", "rollback", "gc")), st.integers(0, 5)), max_size=25))
def test_any_order_of_operations_keeps_the_promises(steps: list[tuple[str, int]]) -> None:
    """What serves is what the log says; a rollback leads to a version that served; nothing that serves is collected."""
    with tempfile.TemporaryDirectory() as folder:
        made = registry(Path(folder))
        stored: dict[int, str] = {}
        stack: list[str] = []
        for step, number in steps:
            _apply(made, step, number, stored, stack)
            assert list(made.pointer("bursts").serving) == stack
            served = made.serve("bursts")
            assert (served.manifest.version if served.manifest else "") == (stack[-1] if stack else "")
            assert served.refused == ()


def _apply(made: Registry, step: str, number: int, stored: dict[int, str], stack: list[str]) -> None:
    if step == "put":
        stored[number] = made.put(content(number), manifest(seed=number, parent="none")).version
    elif step == "promote" and number in stored:
        made.promote("bursts", stored[number], by="test", why="step")
        if stored[number] in stack[:-1]:
            stack.remove(stored[number])
        if not stack or stack[-1] != stored[number]:
            stack.append(stored[number])
    elif step == "rollback":
        if len(stack) < 2:
            with pytest.raises(RegistryError):
                made.rollback("bursts", by="test", why="")
        else:
            made.rollback("bursts", by="test", why="")
            stack.pop()
    elif step == "gc":
        made.gc(keep=6)


def test_a_manifest_is_plain_json(tmp_path: Path) -> None:
    """Other programs can read it, and numbers that are none are refused when stored."""
    made = registry(tmp_path)
    stored = made.put(content(), manifest())
    text: dict[str, Any] = json.loads((tmp_path / "models" / "bursts" / f"{stored.version}.json").read_text())
    assert text["version"] == stored.version
    assert text["manifest"]["libraries"] == LIBRARIES
    with pytest.raises(RegistryError, match="cannot be written as JSON"):
        made.put(content(), manifest(scores={"pinball": float("nan")}))
