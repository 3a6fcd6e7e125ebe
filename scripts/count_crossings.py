"""Count how often one tick goes from one room of the core to another.

    python scripts/count_crossings.py [--scenario quickstart] [--pairs 12]

A crossing is a call of a function of one room (a folder of `autopilot/core/`) by a function of another. Code outside of
the core in between is passed over. The scenario is simulated under the policy `autopilot`, and each tick of its
controller is counted. Printed are the median and the largest number of a tick, and the calls that cross most often.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autopilot import api  # noqa: E402 - the checkout of this script, not an installed one
from autopilot.controller import Controller  # noqa: E402

CORE = str(ROOT / "autopilot" / "core") + "/"


class Crossings:
    """Crossings of each tick, and their calls."""

    def __init__(self) -> None:
        self.of_ticks: list[int] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self._rooms: dict[str, str] = {}
        self._count = 0

    def room(self, path: str) -> str:
        """The room of a source file; "" outside of the core."""
        if path not in self._rooms:
            self._rooms[path] = path[len(CORE) :].split("/", maxsplit=1)[0] if path.startswith(CORE) else ""
        return self._rooms[path]

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, as `sys.setprofile` reports it."""
        if event != "call" or not (called := self.room(frame.f_code.co_filename)):
            return
        caller = frame.f_back
        while caller is not None and not self.room(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None and self.room(caller.f_code.co_filename) != called:
            self._count += 1
            name = f"{frame.f_code.co_filename[len(CORE) :]}:{frame.f_code.co_qualname}"
            self.calls[self.room(caller.f_code.co_filename), name] += 1

    def watch(self, tick: Any) -> Any:
        """`Controller.tick`, counted."""

        def counted(controller: Controller, now_s: float) -> Any:
            self._count = 0
            sys.setprofile(self.profile)
            try:
                return tick(controller, now_s)
            finally:
                sys.setprofile(None)
                self.of_ticks.append(self._count)

        return counted


def main() -> None:
    """Simulate, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="quickstart")
    parser.add_argument("--pairs", type=int, default=12, help="calls to print")
    given, crossings = parser.parse_args(), Crossings()
    Controller.tick = crossings.watch(Controller.tick)  # type: ignore[method-assign]
    api.simulate(api.load(given.scenario))
    ticks = crossings.of_ticks
    print(f"{given.scenario}: {len(ticks)} ticks; crossings of a tick: median {median(ticks):.0f}, most {max(ticks)}")
    for (caller, called), count in crossings.calls.most_common(given.pairs):
        print(f"  {count / len(ticks):8.1f} a tick  {caller} -> {called}")


if __name__ == "__main__":
    main()
