"""The simulated cluster of `--simulate`: a process of its own, which ends with the service, however that ends."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from autopilot.core.model.errors import InputError
from autopilot.service.settings import Simulation
from autopilot.service.state_folder import read_note
from simulator.scenarios.loader import load_scenario
from simulator.serving.client import ServedClient
from simulator.serving.wire import ClockReading

STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 3.0

log: Any = structlog.get_logger("simulation")


@dataclass(slots=True)
class SimulatedCluster:
    """A simulated cluster that answers. `process` is None where another process started it."""

    url: str
    clock: ClockReading
    note: Path
    process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the process that was started for this service; others are left alone."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.note.unlink(missing_ok=True)


def open_cluster(settings: Simulation, note: Path) -> SimulatedCluster:
    """Attach to the cluster that the settings name, or start one.

    `note` is the file that names the cluster of this state folder. Raises `InputError` where none answers.
    """
    if settings.attach is not None:
        return SimulatedCluster(settings.attach, ServedClient(settings.attach).clock(), note)
    return _start(settings, note)


def _start(settings: Simulation, note: Path) -> SimulatedCluster:
    load_scenario(settings.scenario)  # refused here, before a process starts
    note.unlink(missing_ok=True)
    command = [sys.executable, "-m", "autopilot.simulated.process", settings.scenario]
    command += ["--speed", repr(settings.speed), "--listen", settings.listen, "--ready", str(note)]
    command += [] if settings.seed is None else ["--seed", str(settings.seed)]
    # a session of its own: Ctrl-C reaches the controller only, which ends the cluster after itself. The pipe is never
    # written to: it ends with this process, however that ends, and the cluster with it
    process = subprocess.Popen([*command, "--tied"], stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own module
    end_s = time.monotonic() + STARTS_WITHIN_S
    while not (known := read_note(note)):
        if process.poll() is not None:
            raise InputError(f"the simulated cluster ended with {process.returncode} before it answered; see above")
        if time.monotonic() > end_s:
            process.kill()
            raise InputError(f"the simulated cluster did not answer within {STARTS_WITHIN_S:.0f} s")
        time.sleep(0.05)
    url = str(known["url"])
    return SimulatedCluster(url, ServedClient(url).clock(), note, process)
