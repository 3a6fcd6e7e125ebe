"""The serving version: one small file per kind, replaced atomically, with author and reason.

It is a stack: promotion pushes, rollback pops. The state before the last change is stored beside it, so a damaged file
costs at most the last change.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autopilot.registry.atomic_files import MissingError, RegistryError, canonical, read_whole, sha256

SCHEMA = "gpu-autopilot/current/1"
MAX_SERVING = 50
MAX_LOG = 500
"""Number of remembered changes."""

_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Promotion:
    """One change of the serving version."""

    version: str
    before: str
    at_s: float  # since the epoch
    by: str
    why: str
    how: str  # promoted, forced (despite a refusal of the gate) or rolled back


@dataclass(frozen=True, slots=True)
class Pointer:
    """Present and past serving versions, the current one last, and the latest changes."""

    serving: tuple[str, ...] = ()
    log: tuple[Promotion, ...] = ()
    problems: tuple[str, ...] = field(default=(), compare=False)  # of the files it was read from

    @property
    def current(self) -> str:
        """The serving version; "" for none."""
        return self.serving[-1] if self.serving else ""

    def promoted(self, entry: Promotion) -> Pointer:
        """With a version on top; its earlier entry is removed."""
        rest = tuple(version for version in self.serving if version != entry.version)
        return Pointer((*rest, entry.version)[-MAX_SERVING:], (*self.log, entry)[-MAX_LOG:])

    def rolled_back(self, at: int, entry: Promotion) -> Pointer:
        """With the entries above place `at` removed."""
        return Pointer(self.serving[: at + 1], (*self.log, entry)[-MAX_LOG:])

    def to_bytes(self) -> bytes:
        """The bytes on disk, with a digest of all of them."""
        body = {"serving": list(self.serving), "log": [asdict(entry) for entry in self.log]}
        whole = {"schema": SCHEMA, "checksum": sha256(canonical(body)), **body}
        return json.dumps(whole, indent=1).encode()


def read_pointer(path: Path) -> Pointer:
    """The record at `path`; if damaged, the previous one; if both are damaged, no version serves.

    Errors are listed in `problems`; nothing is raised.
    """
    problems: list[str] = []
    before = path.with_suffix(".before.json")
    for place in (path, before):
        try:
            found = _read(place)
        except MissingError:
            continue
        except RegistryError as error:
            problems.append(str(error))
            continue
        if place == before and not problems:
            problems.append(f"{path}: is missing; the previous version serves")
        return Pointer(found.serving, found.log, tuple(problems))
    return Pointer(problems=tuple(problems))


def _read(path: Path) -> Pointer:
    data = read_whole(path, _MAX_BYTES)
    try:
        whole = json.loads(data)
        body = {"serving": whole["serving"], "log": whole["log"]}
        if whole["schema"] != SCHEMA:
            raise RegistryError(f"{path}: written as {whole['schema']}; this version reads {SCHEMA}")
        if sha256(canonical(body)) != whole["checksum"]:
            raise RegistryError(f"{path}: was changed or damaged; the previous version serves")
        return Pointer(tuple(body["serving"]), tuple(Promotion(**entry) for entry in body["log"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RegistryError(f"{path}: cannot be read ({error}); the previous version serves") from error
