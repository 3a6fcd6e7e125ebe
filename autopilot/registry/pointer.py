"""What serves: one small file a kind, replaced whole, with who put it there and why.

It is a stack: promotion pushes, rollback pops. The state before the last change lies beside it, so that a
damaged file costs the last change and no more.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autopilot.registry.atomic_files import MissingError, RegistryError, canonical, read_whole, sha256

SCHEMA = "gpu-autopilot/current/1"
MAX_SERVING = 50
MAX_LOG = 500
"""Changes that are remembered."""

_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Promotion:
    """One change of what serves."""

    version: str
    before: str
    at_s: float  # since the epoch
    by: str
    why: str
    how: str  # promoted, forced (past a gate that said no) or rolled back


@dataclass(frozen=True, slots=True)
class Pointer:
    """Versions that serve or served, the current one last; the changes that led here."""

    serving: tuple[str, ...] = ()
    log: tuple[Promotion, ...] = ()
    problems: tuple[str, ...] = field(default=(), compare=False)  # of the files it was read from

    @property
    def current(self) -> str:
        """The version that serves; "" for none."""
        return self.serving[-1] if self.serving else ""

    def promoted(self, entry: Promotion) -> Pointer:
        """With a version on top; where it was below, it is there no more."""
        rest = tuple(version for version in self.serving if version != entry.version)
        return Pointer((*rest, entry.version)[-MAX_SERVING:], (*self.log, entry)[-MAX_LOG:])

    def rolled_back(self, at: int, entry: Promotion) -> Pointer:
        """With what lies above place `at` taken off."""
        return Pointer(self.serving[: at + 1], (*self.log, entry)[-MAX_LOG:])

    def to_bytes(self) -> bytes:
        """As it lies on the disk, with a digest of all of it."""
        body = {"serving": list(self.serving), "log": [asdict(entry) for entry in self.log]}
        whole = {"schema": SCHEMA, "checksum": sha256(canonical(body)), **body}
        return json.dumps(whole, indent=1).encode()


def read_pointer(path: Path) -> Pointer:
    """The record at `path`; where it is damaged the one before it, where that is too, nothing serves.

    What was wrong is in `problems`; nothing is raised.
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
            problems.append(f"{path}: is gone; what served before serves")
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
            raise RegistryError(f"{path}: was changed or damaged; what served before serves")
        return Pointer(tuple(body["serving"]), tuple(Promotion(**entry) for entry in body["log"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RegistryError(f"{path}: cannot be read ({error}); what served before serves") from error
