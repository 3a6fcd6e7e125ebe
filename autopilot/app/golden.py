"""The golden set: small, synthetic, locked. What every change of the models is judged on.

`scripts/generate_golden.py` writes it. Its content is locked by a digest: another content is another version.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from autopilot.core.errors import InputError

GOLDEN_VERSION = "1"
FOLDER = Path(__file__).resolve().parent.parent.parent / "models" / "golden"
_MEND = "restore it from the release, or write it again with scripts/generate_golden.py"


def golden_file(kind: str) -> Path:
    """The file of `bursts` or `runtimes`. Raises `InputError` when it is missing, or is not what was locked."""
    lock = _lock()
    if lock.get("version") != GOLDEN_VERSION:
        raise InputError(
            f"{FOLDER}: the golden set has the version {lock.get('version')}, not {GOLDEN_VERSION}; {_MEND}"
        )
    about = lock["files"][kind]
    path = FOLDER / str(about["file"])
    if not path.exists():
        raise InputError(f"{path}: is missing; {_MEND}")
    found = content_digest(path)
    if found != about["content_sha256"]:
        raise InputError(f"{path}: holds other data than version {GOLDEN_VERSION} was locked with; {_MEND}")
    return path


def content_digest(path: Path) -> str:
    """SHA-256 of the rows as CSV, whatever the version of the file's format. Raises `InputError` for no table."""
    import pandas as pd

    try:
        text = pd.read_parquet(path).to_csv(index=False, lineterminator="\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {_MEND}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _lock() -> dict[str, Any]:
    path = FOLDER / "golden.json"
    try:
        lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {_MEND}") from error
    return lock
