"""Storage of the controller's memory across restarts: a file, or (in a simulation) a variable.

A controller that lost its dwell timers, its budget ledger or its effects under way would act too early and too often. A
memory that cannot be read therefore stops the start with one error; the operator decides whether to start with an empty
one, by removing the file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.files import is_plain, replace_file, target_of
from autopilot.records.variants import memory_of

SCHEMA = "gpu-autopilot/memory/9"
READ = (SCHEMA, *(f"gpu-autopilot/memory/{number}" for number in (8, 7, 6, 5)))
"""Files of earlier schemas lack slices; those of 5 have the fields of all slices side by side
(autopilot/records/variants.py).
"""


def memory_text(memory: ControllerMemory) -> str:
    """A memory as JSON with a checksum. Infinities and NaN are written as Python's json does."""
    body = json.dumps(msgspec.to_builtins(memory, enc_hook=_plain), sort_keys=False)
    return f'{{"schema": "{SCHEMA}", "digest": "{_digest(body)}", "memory": {body}}}\n'


def read_memory_text(text: str, source: str) -> ControllerMemory:
    """The inverse of `memory_text`; raises `InputError` naming `source` for any other text."""
    fix = (
        "restore it from a backup, or remove it to start with an empty memory (dwell timers and budgets "
        f"restart): {source}"
    )
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        raise InputError(f"{source}: not a controller memory, or truncated ({error}); {fix}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema not in READ:
        raise InputError(f"{source}: schema is {schema!r}, this version reads {', '.join(READ)}; {fix}")
    body = content.get("memory")
    if content.get("digest") != _digest(json.dumps(body, sort_keys=False)):
        raise InputError(f"{source}: the digest does not match its content: it was changed or damaged; {fix}")
    try:
        return replace(memory_of(body), schema=ControllerMemory().schema)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {error}; {fix}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be stored in a memory")


def _digest(body: str) -> str:
    return blake2b(body.encode(), digest_size=8).hexdigest()


class FileMemoryStore:
    """Memory in one file, replaced atomically."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(
                f"{self.path}: is a folder; give the path of a file, for example {self.path / 'memory.json'}"
            )
        if not is_plain(self.path):
            raise InputError(f"{self.path}: is a pipe or a device; give the path of a file")
        if not target_of(self.path).parent.is_dir():
            raise InputError(
                f"{self.path}: the folder {self.path.parent} does not exist; create it or give another path"
            )

    def load(self) -> ControllerMemory | None:
        """The last saved memory, or None on a first start. Raises `InputError` when it cannot be trusted."""
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path}: the controller memory cannot be read: {error}") from error
        return read_memory_text(text, str(self.path))

    def save(self, memory: ControllerMemory) -> None:
        """Write beside the old file, sync, then replace it."""
        try:
            replace_file(self.path, lambda temporary: temporary.write_text(memory_text(memory), "utf-8"), durable=True)
        except InputError as error:
            raise InputError(
                f"{error}; this is the controller memory, and the previous one is kept. Free some space or "
                "make the folder writable"
            ) from error


class InMemoryStore:
    """Memory of a run that is never resumed."""

    def __init__(self, memory: ControllerMemory | None = None) -> None:
        self._memory = memory

    def load(self) -> ControllerMemory | None:
        """The last saved memory, or None on a first start."""
        return self._memory

    def save(self, memory: ControllerMemory) -> None:
        """Keep it."""
        self._memory = memory
