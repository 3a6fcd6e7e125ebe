"""The simulated cluster of `--simulate`: a process of its own, found again after a crash, stopped at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from autopilot.core.model.errors import InputError
from autopilot.service.settings import Simulation
from autopilot.service.state_folder import read_note
from simulator.serving.client import ServedClient
from simulator.serving.wire import ClockReading

STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 10.0

log: Any = structlog.get_logger("simulation")


@dataclass(slots=True)
class SimulatedCluster:
    """A simulated cluster that answers. `process` is None where another process started it.

    `owned`: it was started for this service, or for the predecessor whose place this service took.
    """

    url: str
    clock: ClockReading
    note: Path
    pid: int = 0  # of a cluster that this service, or its predecessor, started
    process: subprocess.Popen[bytes] | None = None
    owned: bool = False

    def stop(self) -> None:
        """End the process that was started for this service; others are left alone."""
        if not self.pid or not (self.owned or self.process is not None):
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.note.unlink(missing_ok=True)


def open_cluster(settings: Simulation, note: Path) -> SimulatedCluster:
    """Attach to the cluster that the settings name, or that the last service left behind, or start one.

    `note` is the file that names the cluster of this state folder. Raises `InputError` where none answers.
    """
    if settings.attach is not None:
        return SimulatedCluster(settings.attach, ServedClient(settings.attach).clock(), note)
    left = _left_behind(settings, note)
    return left if left is not None else _start(settings, note)


def _left_behind(settings: Simulation, note: Path) -> SimulatedCluster | None:
    """The cluster of a controller that died, if it still runs with the same settings."""
    known = read_note(note)
    url, pid = known.get("url"), known.get("pid")
    if not isinstance(url, str) or not isinstance(pid, int):
        return None
    try:
        clock = ServedClient(url, timeout_s=2.0).clock()
    except InputError:
        return None
    if clock.run != known.get("run"):
        return None
    asked = (settings.scenario, settings.speed, settings.seed)
    if (known.get("asked_scenario"), clock.speed, known.get("asked_seed")) != asked:
        raise InputError(
            f"{note}: a simulated cluster of another scenario, speed or seed still runs (process {pid}, {url}); end it "
            f"with `kill {pid}`, or give another state folder"
        )
    log.info("attached to the cluster that still runs", url=url, run=clock.run, now_s=clock.now_s)
    return SimulatedCluster(url, clock, note, pid)


def _start(settings: Simulation, note: Path) -> SimulatedCluster:
    note.unlink(missing_ok=True)
    command = [sys.executable, "-m", "autopilot.service.cluster_process", settings.scenario]
    command += ["--speed", repr(settings.speed), "--listen", settings.listen, "--ready", str(note)]
    command += [] if settings.seed is None else ["--seed", str(settings.seed)]
    # a session of its own: Ctrl-C reaches the controller only, which ends the cluster after itself
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - our own module
    end_s = time.monotonic() + STARTS_WITHIN_S
    while not (known := read_note(note)):
        if process.poll() is not None:
            raise InputError(f"the simulated cluster ended with {process.returncode} before it answered; see above")
        if time.monotonic() > end_s:
            process.kill()
            raise InputError(f"the simulated cluster did not answer within {STARTS_WITHIN_S:.0f} s")
        time.sleep(0.05)
    url = str(known["url"])
    return SimulatedCluster(url, ServedClient(url).clock(), note, process.pid, process)
