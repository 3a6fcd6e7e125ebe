"""`autopilot run` whose loop hangs at its third tick: python hung_service.py LEAST_S run --config FILE."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any

from autopilot.cli import main
from autopilot.controller import Controller
from autopilot.service import pulse, wiring

HANGS = "the third tick hangs"


def hang() -> None:
    """Let a controller tick twice, and hang for good in its third tick."""
    tick, ticks = Controller.tick, [0]

    def hung(controller: Controller, now_s: float) -> Any:
        ticks[0] += 1
        if ticks[0] == 3:
            sys.stderr.write(f"{HANGS}\n")
        while ticks[0] > 2:
            threading.Event().wait()
        return tick(controller, now_s)

    setattr(Controller, "tick", hung)  # noqa: B010 - mypy knows the method


if __name__ == "__main__":
    hang()
    pulse.ENDS_S, pulse.SHOWN_S = 1.0, 5.0
    setattr(wiring, "Pulse", partial(pulse.Pulse, least_s=float(sys.argv[1])))  # noqa: B010
    main(sys.argv[2:])
