"""The book of verdicts: one file per (run, case), so judging again writes the same content.

The digest of subject, data and rules names a run. Repeating a run overwrites each case with the same content; an
interrupted run is completed by repeating it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autopilot.registry.atomic_files import RegistryError, canonical, locked, read_whole, sha256, write_whole

SCHEMA = "gpu-autopilot/verdict/1"
SUMMARY = "summary"
_MAX_BYTES = 4 * 1024 * 1024
_VERSION = re.compile(r"[0-9a-f]{64}")
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


def run_name(**parts: Any) -> str:
    """The name of a run: the first 24 characters of the digest of plain values."""
    return sha256(canonical(parts))[:24]


class VerdictBook:
    """Verdicts in a folder of the registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, run: str, case: str, verdict: Mapping[str, Any]) -> bool:
        """Record the verdict of a case; False if the same one is recorded already.

        Raises `RegistryError` if the disk fails.
        """
        body = {"run": run, "case": case, **verdict}
        whole = {"schema": SCHEMA, "checksum": sha256(canonical(body)), **body}
        data = json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode()
        path = self._path(run, case)
        with suppress(RegistryError):
            if read_whole(path, _MAX_BYTES) == data:
                return False
        with locked(self.folder):
            write_whole(path, data)
        return True

    def read(self, run: str, case: str) -> dict[str, Any] | None:
        """The verdict of a case; None if there is none, or it is damaged."""
        try:
            whole = json.loads(read_whole(self._path(run, case), _MAX_BYTES))
            checksum = whole.pop("checksum")
            schema = whole.pop("schema")
            body = {str(name): value for name, value in whole.items()}
            believed = schema == SCHEMA and checksum == sha256(canonical(body))
        except (RegistryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return body if believed and body.get("run") == run and body.get("case") == case else None

    def summaries(self) -> list[dict[str, Any]]:
        """The existing summaries of all runs."""
        runs = sorted(path.name for path in (self.folder / "verdicts").glob("*") if path.is_dir())
        found = (self.read(run, SUMMARY) for run in runs)
        return [each for each in found if each is not None]

    def drop_unknown(self, known: set[str]) -> int:
        """Drop the runs about a version no longer `known`; returns their number. Those of code and policies stay."""
        with locked(self.folder):
            gone = [
                str(each["run"])
                for each in self.summaries()
                if _VERSION.fullmatch(str(each.get("version", ""))) and each["version"] not in known
            ]
            for run in gone:
                shutil.rmtree(self.folder / "verdicts" / run, ignore_errors=True)
        return len(gone)

    def _path(self, run: str, case: str) -> Path:
        # group names become file names: a digest keeps similar ones apart
        plain = _SAFE.sub("-", case).strip("-.")[:60]
        name = case if plain == case else f"{plain}-{sha256(case.encode())[:8]}"
        return self.folder / "verdicts" / run / f"{name}.json"
