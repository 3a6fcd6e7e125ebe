"""Our custom resources in the playground, as `kubectl apply -f deploy/crds/` brings them into a cluster."""

from __future__ import annotations

from apiserver.crd.definition import CRDS
from apiserver.crd.serve import kinds_of
from apiserver.server import Server
from apiserver.users import ADMIN
from autopilot.crds.definitions import policy_definition, recommendation_definition

MOST = 100
"""Recommendations kept as objects."""


def add_control_resources(server: Server) -> None:
    """Define them. They are served at once."""
    client = server.client(ADMIN, "kubectl")
    for definition in (policy_definition(), recommendation_definition()):
        for kind in kinds_of(definition):
            server.kinds.add(kind)
        client.create(CRDS, definition)
