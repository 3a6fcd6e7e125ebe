"""The API server of the playground: built-in admission, Kueue's kinds, and pods without output."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from apiserver.access.authentication import Authentication
from apiserver.admission import PLUGINS
from apiserver.admission.base import Attributes
from apiserver.crd.definition import CRDS
from apiserver.crd.serve import kinds_of
from apiserver.errors import StatusError
from apiserver.kinds.base import Call, Kind, State, Subresource
from apiserver.kueue.config import Config
from apiserver.kueue.crds import definitions
from apiserver.kueue.webhooks import KueueWebhooks
from apiserver.requests import Response
from apiserver.server import Server
from apiserver.standard import install_standard
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system", "kueue-system")
PLAYGROUND = "system:playground"
"""The user name of the simulated cluster's own writes. Kueue's webhook rules apply to all other users."""
NOT_HERE = {
    "log": "there are no logs: pods of the playground are simulated and print nothing; read `kubectl describe pod`",
    "exec": "nothing can be run in it: pods of the playground are simulated",
    "attach": "there is no process to attach to: pods of the playground are simulated",
    "portforward": "no port is open in it: pods of the playground are simulated",
}
"""Subresources of pods in need of a kubelet, with the answer given instead."""


class KueueRules(KueueWebhooks):
    """The refusals of Kueue's webhooks. These rules change nothing: the projection makes the changes of the
    webhooks.
    """

    name = "kueue-rules"

    def mutate(self, _attributes: Attributes, _server: State) -> None:
        """Nothing."""

    def validate(self, attributes: Attributes, server: State) -> None:
        """Refuse with 403, as the webhook does."""
        if attributes.user.name != PLAYGROUND:
            super().validate(attributes, server)


def playground_server(timeline: Timeline, rng: random.Random, token: str = "") -> Server:
    """A server without controllers of its own: the projection of the simulated cluster takes their place.

    A client with `token` is its administrator; with "" every client is.
    """
    server = Server(timeline, rng)
    for plugin in PLUGINS:
        server.admission.add(plugin())
    server.admission.add(KueueRules(Config()))
    install_standard(server)
    if token:
        server.authenticate = Authentication(server, {token: ADMIN})
    _add_kueue(server)
    pods = server.kinds.stored("pods")
    if pods is not None:
        refusals = {
            name: Subresource(name, ("get", "create"), handler=_refusal(text)) for name, text in NOT_HERE.items()
        }
        server.kinds.add(replace(pods, subresources={**pods.subresources, **refusals}))
    client = server.client(ADMIN, "kube-apiserver")
    for name in SYSTEM_NAMESPACES:
        client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return server


def _refusal(text: str) -> Callable[[State, Call], Response]:
    def refuse(_server: State, call: Call) -> Response:
        name = f'pods "{call.name}"'
        raise StatusError(501, "NotImplemented", f"{name}: {text}", {"name": call.name, "kind": "pods"})

    return refuse


def _add_kueue(server: Server) -> None:
    """The kinds of Kueue. Its webhooks and controllers do not run: the engine of the simulator decides."""
    client = server.client(ADMIN, "kubectl")
    for crd in definitions():
        kinds = {kind.version: kind for kind in kinds_of(crd)}
        stored = kinds[next(each["name"] for each in crd["spec"]["versions"] if each["storage"])]
        server.kinds.adapters[stored.resource] = partial(_only, stored)
        server.kinds.add(stored)
        client.create(CRDS, crd)


def _only(stored: Kind, kind: Kind) -> Kind:
    """Only the stored version is served: the other one needs the conversion webhook of Kueue's manager."""
    return stored if kind.version == stored.version else kind
