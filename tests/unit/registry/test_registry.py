"""The registry: what it stores once, what serves, and how that changes."""

from __future__ import annotations

import io
import json
import os
import zipfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.registry import (
    ArtifactError,
    Registry,
    RegistryError,
    difference,
    lineage,
    pack,
    unpack,
)
from autopilot.registry.manifest import read_manifest
from tests.kits.registry_kit import LIBRARIES, content, estimator, manifest, registry, stocked

ROOT = Path(__file__).resolve().parents[3]

# --- artifacts --------------------------------------------------------------------------------------


def test_a_model_comes_back_as_it_went() -> None:
    """Estimators forecast the same, arrays and plain values are equal."""
    data = pack({**content(), "estimator": estimator(), "none": None, "by_number": {1: float("nan")}})
    back = unpack(data)
    columns = np.random.default_rng(1).normal(size=(20, 3))
    np.testing.assert_array_equal(back["estimator"].predict(columns), estimator().predict(columns))
    np.testing.assert_array_equal(back["weights"], np.arange(4.0))
    assert (back["levels"], back["none"], list(back["by_number"])) == ((0.5, 0.9), None, [1])


def test_equal_content_has_equal_bytes() -> None:
    """Whatever the addresses in memory and the time; a model that was read and written again is the same."""
    model = {**content(), "estimators": [estimator(), estimator()], "names": {"__id__": 3, "a": 1}}
    data = pack(model)
    assert pack(deepcopy(model)) == data
    assert pack(unpack(data)) == data
    assert unpack(data)["names"] == {"__id__": 3, "a": 1}
    assert pack(content(1)) != pack(content(2))


@pytest.mark.parametrize(
    "foreign",
    [np.sin, print, Path("x"), replace, Registry, lambda: 1],
    ids=["ufunc", "builtin", "path", "function", "class", "lambda"],
)
def test_only_trusted_types_are_stored(foreign: Any) -> None:
    """What would be refused when read is refused when written."""
    with pytest.raises(ArtifactError, match=r"untrusted types|cannot be stored"):
        pack({"model": foreign})


def _with_schema(schema: dict[str, Any]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("module", "name", "loader"),
    [
        ("os", "system", "FunctionNode"),
        ("builtins", "eval", "TypeNode"),
        ("subprocess", "Popen", "ObjectNode"),
        ("builtins", "dict", "MethodNode"),
        ("sklearn.preprocessing._function_transformer", "FunctionTransformer", "ObjectNode"),
    ],
)
def test_a_crafted_archive_is_refused_before_anything_is_built(
    tmp_path: Path, module: str, name: str, loader: str
) -> None:
    """Even types that skops itself would trust."""
    marker = tmp_path / "built"
    evil = {
        "__module__": module,
        "__class__": name,
        "__loader__": loader,
        "__id__": 2,
        "content": {"command": f"touch {marker}"},
    }
    schema = {
        "__class__": "dict",
        "__module__": "builtins",
        "__loader__": "DictNode",
        "__id__": 1,
        "protocol": 1,
        "content": {"x": evil},
        "key_types": {},
        "_skops_version": "0.16",
    }
    with pytest.raises(ArtifactError, match="untrusted types"):
        unpack(_with_schema(schema))
    assert not marker.exists()


def test_a_small_archive_of_endless_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the content is looked at before it is read."""
    monkeypatch.setattr("autopilot.registry.artifact.MAX_BYTES", 10_000)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", "{}")
        archive.writestr("zeros.npy", bytes(100_000))
    assert len(bomb.getvalue()) < 1000
    with pytest.raises(ArtifactError, match="100,002 bytes"):
        unpack(bomb.getvalue())


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", _with_schema({})], ids=len)
def test_what_is_no_artifact_is_refused(data: bytes) -> None:
    """Nothing, half an archive, a pickle, an archive without content."""
    with pytest.raises(ArtifactError):
        unpack(data)


# --- storing ----------------------------------------------------------------------------------------


def test_equal_content_is_stored_once(tmp_path: Path) -> None:
    """The same version again changes nothing; another one of equal content shares the artifact."""
    shelf = registry(tmp_path / "r")
    first = shelf.put(content(), manifest())
    again = shelf.put(content(), manifest())
    other = shelf.put(content(), manifest(seed=7))
    assert again == first
    assert other.version != first.version
    assert other.artifact == first.artifact
    assert len(list((tmp_path / "r" / "blobs").glob("*/*.skops"))) == 1
    assert set(shelf.versions("bursts")) == {first.version, other.version}


def test_a_manifest_says_where_a_version_comes_from(tmp_path: Path) -> None:
    """All of it survives the disk, and the parent is what served."""
    shelf, names = stocked(tmp_path, 2)
    stored = shelf.manifest("bursts", names[1])
    assert stored.parent == names[0]
    assert (stored.data, stored.feature_schema, stored.parameters) == (
        {"name": "a.csv", "digest": "d"},
        ("lag_1",),
        {"trees": 5},
    )
    assert (stored.libraries, stored.code, stored.seed, stored.scores) == (LIBRARIES, "0.1.0", 1, {"pinball_p99": 0.5})
    assert stored.created_by == "test"
    assert stored.created_s > 0
    assert read_manifest(stored.to_bytes(), stored.version) == stored


def test_lineage_and_difference(tmp_path: Path) -> None:
    """Ancestors newest first; what differs, and only that."""
    shelf, names = stocked(tmp_path, 3)
    found, end = lineage(shelf, shelf.manifest("bursts", names[2]))
    assert ([each.version for each in found], end) == (names[::-1], "")
    one, other = (shelf.manifest("bursts", name) for name in names[1:])
    assert {name for name, _, _ in difference(one, other)} == {
        "artifact",
        "artifact_bytes",
        "seed",
        "parent",
        "created_s",
    }
    assert ("seed", 1, 2) in difference(one, other)
    assert not difference(one, one)
    (tmp_path / "models" / "bursts" / f"{names[0]}.json").unlink()
    found, end = lineage(shelf, other)
    assert [each.version for each in found] == [names[2], names[1]]
    assert "there is no version" in end


# --- serving ----------------------------------------------------------------------------------------


def test_promotion_and_rollback_in_one_step(tmp_path: Path) -> None:
    """What is promoted serves; rolled back, the one before does, and again the one before that."""
    shelf, names = stocked(tmp_path, 3)
    for name in (names[2], names[1], names[0]):
        served = shelf.serve("bursts")
        assert served.manifest is not None
        assert served.content is not None
        assert served.manifest.version == name
        assert served.content["number"] == names.index(name)
        assert served.refused == ()
        if name != names[0]:
            shelf.rollback("bursts", by="me", why="worse")
    with pytest.raises(RegistryError, match="no version before"):
        shelf.rollback("bursts", by="me", why="")
    log = shelf.pointer("bursts").log
    assert [entry.how for entry in log] == ["promoted"] * 3 + ["rolled back"] * 2
    assert (log[3].version, log[3].before, log[3].by, log[3].why) == (names[1], names[2], "me", "worse")


def test_kinds_do_not_touch_each_other(tmp_path: Path) -> None:
    """Run times are promoted and bursts stay."""
    shelf, bursts = stocked(tmp_path, 1)
    _, runtimes = stocked(tmp_path, 2, "runtimes")
    assert shelf.pointer("bursts").current == bursts[0]
    assert shelf.pointer("runtimes").current == runtimes[1]
    with pytest.raises(RegistryError, match="no version"):
        shelf.promote("bursts", runtimes[0], by="me", why="wrong kind")
    with pytest.raises(RegistryError, match="is not one of"):
        shelf.versions("policies")


def test_nothing_serves_in_an_empty_registry(tmp_path: Path) -> None:
    """The caller stays on its floor, without an error and without a folder."""
    shelf = registry(tmp_path / "none")
    assert shelf.serve("bursts").manifest is None
    assert shelf.entries("bursts") == ([], [])
    assert not (tmp_path / "none").exists()


def test_a_model_of_other_libraries_is_refused_and_the_one_before_serves(tmp_path: Path) -> None:
    """scikit-learn promises nothing about another version; numpy may differ."""
    shelf, names = stocked(tmp_path, 1)
    other = registry(tmp_path, libraries={**LIBRARIES, "scikit-learn": "2.0", "numpy": "3.0"})
    newer = other.put(content(9), manifest(libraries={**LIBRARIES, "scikit-learn": "2.0"}))
    other.promote("bursts", newer.version, by="me", why="upgrade")
    served = shelf.serve("bursts")
    assert served.manifest is not None
    assert served.manifest.version == names[0]
    assert served.refused[0][0] == newer.version
    assert "fitted with scikit-learn 2.0, but 1.9.1 is installed" in served.refused[0][1]
    with pytest.raises(RegistryError, match="fit it again"):
        shelf.promote("bursts", newer.version, by="me", why="again")
    registry(tmp_path, libraries={**LIBRARIES, "numpy": "3.0"}).load("bursts", names[0])


def test_a_caller_may_refuse_what_it_cannot_use(tmp_path: Path) -> None:
    """Another feature schema, say: the version before serves, with the reason told."""
    shelf, names = stocked(tmp_path, 3)
    served = shelf.serve("bursts", lambda found, _: "other features" if found.version == names[2] else "")
    assert served.manifest is not None
    assert (served.manifest.version, served.refused) == (names[1], ((names[2], "other features"),))
    assert shelf.serve("bursts", lambda *_: "no").content is None


def test_a_version_judged_against_another_champion_is_a_conflict(tmp_path: Path) -> None:
    """Between the verdict and the promotion somebody else promoted."""
    shelf, names = stocked(tmp_path, 2)
    late = shelf.put(content(5), manifest(seed=5))
    with pytest.raises(RegistryError, match="judge it again"):
        shelf.promote("bursts", late.version, by="me", why="better", expected=names[0])
    assert shelf.pointer("bursts").current == names[1]
    shelf.promote("bursts", late.version, by="me", why="better", expected=names[1])
    assert shelf.pointer("bursts").current == late.version


def test_promotion_wants_a_reason(tmp_path: Path) -> None:
    """Who and why stand in the record."""
    shelf, _ = stocked(tmp_path, 1)
    other = shelf.put(content(4), manifest(seed=4))
    with pytest.raises(RegistryError, match="give a reason"):
        shelf.promote("bursts", other.version, by="me", why="  ")


def test_a_version_is_found_by_its_beginning(tmp_path: Path) -> None:
    """Or by its kind, for what serves; too little, or nothing, is told apart."""
    shelf, names = stocked(tmp_path, 2)
    assert shelf.find("bursts").version == names[1]
    assert shelf.find(names[0][:10]).version == names[0]
    for wrong, words in (
        ("abc", "at least 4"),
        ("zzzz", "no version starts with this"),
        ("runtimes", "no version serves"),
    ):
        with pytest.raises(RegistryError, match=words):
            shelf.find(wrong)


# --- damage -----------------------------------------------------------------------------------------


def test_a_damaged_pointer_costs_the_last_change(tmp_path: Path) -> None:
    """The previous version keeps serving, and the damage is reported; the next promotion repairs it."""
    shelf, names = stocked(tmp_path, 3)
    place = tmp_path / "current" / "bursts.json"
    whole = place.read_bytes()
    swapped = whole.replace(names[2].encode(), names[0].encode())  # another version that could serve
    for damage in (b"", b"{", whole[:-40], swapped):
        place.write_bytes(damage)
        served = shelf.serve("bursts")
        assert served.manifest is not None
        assert served.manifest.version == names[1]
        assert served.refused
    place.unlink()
    assert shelf.pointer("bursts").current == names[1]
    assert "is missing" in shelf.pointer("bursts").problems[0]
    shelf.promote("bursts", names[2], by="me", why="mend")
    assert shelf.pointer("bursts").current == names[2]
    assert not shelf.pointer("bursts").problems


def test_with_all_pointers_damaged_nothing_serves(tmp_path: Path) -> None:
    """And nothing is raised."""
    shelf, _ = stocked(tmp_path, 3)
    for place in (tmp_path / "current").iterdir():
        place.write_bytes(b"\x00" * 10)
    served = shelf.serve("bursts")
    assert served.content is None
    assert len(served.refused) == 2


def test_a_pipe_in_place_of_an_artifact_does_not_hold_the_reader(tmp_path: Path) -> None:
    """Opening it would wait for a writer."""
    shelf, names = stocked(tmp_path, 2)
    blob = shelf.blob_path(shelf.manifest("bursts", names[1]).artifact)
    blob.unlink()
    os.mkfifo(blob)
    served = shelf.serve("bursts")
    assert served.manifest is not None
    assert served.manifest.version == names[0]
    assert "no plain file" in served.refused[0][1]


def test_a_rollback_passes_over_what_cannot_serve(tmp_path: Path) -> None:
    """The version before is gone; the one before that serves."""
    shelf, names = stocked(tmp_path, 3)
    shelf.blob_path(shelf.manifest("bursts", names[1]).artifact).write_bytes(b"gone")
    assert shelf.rollback("bursts", by="me", why="bad").current == names[0]


def test_a_damaged_manifest_is_listed_as_damaged(tmp_path: Path) -> None:
    """The others are listed as ever."""
    shelf, names = stocked(tmp_path, 3)
    place = tmp_path / "models" / "bursts" / f"{names[1]}.json"
    place.write_bytes(place.read_bytes().replace(b'"seed": 1', b'"seed": 2'))
    entries, damaged = shelf.entries("bursts")
    assert [each.manifest.version for each in entries] == [names[2], names[0]]
    assert [name for name, _ in damaged] == [names[1]]
    assert "changed or damaged" in damaged[0][1]
