"""A cluster: the server with its admission and its actors."""

from __future__ import annotations

import random
from collections.abc import Callable

from apiserver.actors import ACTORS
from apiserver.admission import PLUGINS
from apiserver.server import NameUid, Server
from apiserver.standard import install_standard
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
Install = Callable[[Server], None]
KUEUE: list[Install] = []  # what Kueue adds: kinds, webhooks, controllers


def cluster(
    timeline: Timeline,
    rng: random.Random,
    *,
    first_version: int = 1,
    new_uid: NameUid | None = None,
    kueue: bool = False,
) -> Server:
    """A server with the built-in admission, the controllers of a cluster, and (`kueue`) Kueue."""
    server = Server(timeline, rng, first_version=first_version, new_uid=new_uid)
    for plugin in PLUGINS:
        server.admission.add(plugin())
    for actor in ACTORS:
        actor(server)
    install_standard(server)
    for install in KUEUE if kueue else ():
        install(server)
    client = server.client(ADMIN, "kube-apiserver")
    for name in SYSTEM_NAMESPACES:
        client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return server
