"""The kill switch: a file, the environment and the API. It is read at every tick; an unreadable one is on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

KILL = "GPU_AUTOPILOT_KILL"
OFF = frozenset({"", "0", "off", "false", "no"})
_MOST_BYTES = 64


class KillSwitch:
    """Reasons to act on nothing, by source.

    The command `kill` is kept by the inbox and the memory of the controller.
    """

    def __init__(
        self, file: Path, environment: Mapping[str, str] = os.environ, elsewhere: Callable[[], str] | None = None
    ) -> None:
        """`elsewhere` returns the reason of a cluster's switch that is on, "" while it is off."""
        self.file, self._environment, self._elsewhere = file, environment, elsewhere
        self._tripped = ""

    def trip(self, reason: str) -> None:
        """Switch on until the process ends: a command `kill` that could not be stored still counts."""
        self._tripped = reason

    def reason(self) -> str:
        """The reason of a switch that is on; "" while it is off."""
        if self._tripped:
            return self._tripped
        said = self._environment.get(KILL, "")
        if said.strip().lower() not in OFF:
            return f"the environment sets {KILL} to {said[:20]!r}"
        return self._of_file() or (self._elsewhere() if self._elsewhere is not None else "")

    def _of_file(self) -> str:
        try:
            with self.file.open("rb") as file:
                said = file.read(_MOST_BYTES).decode("utf-8", "replace").strip().lower()
        except FileNotFoundError:
            if self.file.parent.is_dir():
                return ""
            return f"{self.file}: its folder is gone, so the kill switch cannot be read"
        except OSError as error:
            return f"{self.file}: the kill switch cannot be read: {error.strerror or error}"
        return "" if said in OFF - {""} else f"the file {self.file} exists"
