"""Plays what was done to the processes of the recorded servers: signals and starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from apiserver.kueue.context import PROCESS as KUEUE
from apiserver.kueue.manager import Kueue
from apiserver.server import Server
from tests.kube.replay.recording import Action, Recording

API_SERVER = "kube-apiserver"
RESTARTS_S = {KUEUE: 4.0, API_SERVER: 1.0}  # from the signal to the process that was started
WORD = re.compile(r"SIGSTOP|SIGCONT|SIGKILL|SIGTERM|\bstart")


def actions_agenda(
    recording: Recording, server: Server, kueue: Kueue | None
) -> Iterator[tuple[float, int, Callable[[], None]]]:
    """The actions as things to do at a time; what is no signal and no start is a remark."""
    for action in recording.actions:
        if "has ended" in action.what:
            continue
        for number, what in enumerate(WORD.findall(action.what)):
            later_s = RESTARTS_S.get(action.process, 0.0) if number else 0.0
            yield action.t_s + later_s, -3, partial(_act, action, what, server, kueue)


def _act(action: Action, what: str, server: Server, kueue: Kueue | None) -> None:
    process = server.process(action.process)
    if what == "SIGSTOP":
        process.stop()
    elif what == "SIGCONT":
        process.resume()
    elif action.process == API_SERVER:
        {"SIGKILL": server.uptime.kill, "SIGTERM": server.uptime.end, "start": server.uptime.start}[what]()
    elif action.process == KUEUE and kueue is not None:
        (kueue.restart if what == "start" else kueue.stop)()
