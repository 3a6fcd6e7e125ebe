"""Plays what the topics of Kueue had prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from apiserver.errors import StatusError
from apiserver.kueue.manager import Kueue
from apiserver.server import Server
from apiserver.users import ADMIN
from tests.kube.replay.kueue_edits import KueueWrite
from tests.kube.replay.kueue_world import KueueWorld
from tests.kube.replay.recording import Recording


def kueue_agenda(
    recording: Recording, server: Server, kueue: Kueue | None, aliases: Mapping[str, str], failures: list[str]
) -> list[tuple[float, int, Callable[[], None]]]:
    """The writes as things to do at a time, on our names of objects; what the server refuses goes to `failures`."""
    if kueue is None:
        return []

    def do(write: KueueWrite) -> None:
        try:
            _write(write, aliases.get(write.name, write.name), server, kueue)
        except StatusError as error:
            failures.append(f"{write.t_s:.3f} {write.method} {write.resource} {write.name}: {error}")

    return [(each.t_s, -1, partial(do, each)) for each in KueueWorld(recording).writes()]


def _write(write: KueueWrite, name: str, server: Server, kueue: Kueue) -> None:
    if write.method in {"STOP", "START"}:
        (kueue.stop if write.method == "STOP" else kueue.restart)()
        return
    kind = next(each for each in server.kinds.all() if each.plural == write.resource)
    client = server.client(ADMIN, "recorder")
    if write.method == "POST":
        client.create(kind.storage, write.body)
    elif write.method == "DELETE":
        client.delete(kind.storage, write.namespace, name, write.body)
    else:
        part = "status" if write.method == "STATUS" else ""
        client.patch(kind.storage, write.namespace, name, write.body, part)
