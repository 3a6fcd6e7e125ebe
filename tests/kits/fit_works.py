"""Fits that the tests of the worker run: in a process of their own, hence in a module that can be imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Square:
    """A fit that is done at once: (square of `value`, process)."""

    value: int

    def run(self) -> tuple[int, int]:
        """The answer."""
        return self.value**2, os.getpid()


@dataclass(frozen=True)
class Fails:
    """A fit whose data is bad."""

    def run(self) -> Any:
        """Raise."""
        raise ZeroDivisionError("no rows")


@dataclass(frozen=True)
class Spins:
    """A fit that never ends and uses the processor all the while."""

    def run(self) -> Any:
        """Go round."""
        while True:
            pass


@dataclass(frozen=True)
class Tells:
    """A fit that says its process in a file, and never ends."""

    path: str

    def run(self) -> Any:
        """Say it, and go round."""
        Path(self.path).write_text(str(os.getpid()), "utf-8")
        while True:
            pass


@dataclass(frozen=True)
class Dies:
    """A fit whose process goes away."""

    def run(self) -> Any:
        """Leave without a word."""
        os._exit(3)


@dataclass(frozen=True)
class Threads:
    """A fit that says how many threads each pool of a library may use, and in which process."""

    def run(self) -> tuple[set[int], int]:
        """The numbers."""
        from threadpoolctl import threadpool_info

        return {int(pool["num_threads"]) for pool in threadpool_info()}, os.getpid()
