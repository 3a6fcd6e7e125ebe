"""Programs that some tests run: what `make test-services` unpacked (kubectl, helm) comes before PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "build" / "tools"


class MissingToolError(RuntimeError):
    """A program is not installed."""


def find_tool(name: str) -> str:
    """The path of a program. Raises MissingToolError."""
    path = shutil.which(name, path=f"{FOLDER}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if path is None:
        raise MissingToolError(f"needs {name}, install it with `make test-services`")
    return path
