"""A cluster: the server with its admission and its actors."""

from __future__ import annotations

import random

from apiserver.actors.controllers import ACTORS
from apiserver.actors.kubelet import Kubelet, KubeletOptions
from apiserver.actors.node_lifecycle import NodeLifecycle
from apiserver.actors.nodes import NodeAgent
from apiserver.admission import PLUGINS
from apiserver.kinds.base import NameSuffix, NameUid
from apiserver.kueue.install import install
from apiserver.server import Pick, Server
from apiserver.standard import install_standard
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def cluster(
    timeline: Timeline,
    rng: random.Random,
    *,
    first_version: int = 1,
    new_uid: NameUid | None = None,
    new_suffix: NameSuffix | None = None,
    pick: Pick | None = None,
    kueue: bool = False,
    kubelets: KubeletOptions | None = None,
) -> Server:
    """A server with the built-in admission, the controllers of a cluster, and (`kueue`) Kueue.

    `kubelets` states the nodes with a kubelet, and its behaviour.
    """
    server = Server(timeline, rng, first_version=first_version, new_uid=new_uid, new_suffix=new_suffix, pick=pick)
    for plugin in PLUGINS:
        server.admission.add(plugin())
    install_standard(server)
    kubelet = Kubelet(server, kubelets)
    server.actors += [*(actor(server) for actor in ACTORS), kubelet]
    server.actors += [NodeAgent(server, kubelet, kubelets), NodeLifecycle(server, kubelet)]
    if kueue:
        server.actors.append(install(server))
    client = server.client(ADMIN, "kube-apiserver")
    for name in SYSTEM_NAMESPACES:
        client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return server
