"""Installs Kueue on a server: its kinds, webhooks, controllers, visibility API and metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from apiserver.crd.lifecycle import CRDS
from apiserver.crd.serve import kinds_of
from apiserver.kueue import metrics
from apiserver.kueue.config import Config
from apiserver.kueue.conversion import OLD, converted
from apiserver.kueue.crds import definitions
from apiserver.kueue.manager import Kueue
from apiserver.kueue.visibility import Visibility
from apiserver.users import ADMIN

if TYPE_CHECKING:
    from apiserver.kinds.base import Kind
    from apiserver.server import Server

Obj = dict[str, Any]


def install(server: Server, config: Config | None = None) -> Kueue:
    """Kueue as it runs after a standard installation; its kinds are served at once."""
    kueue_down = [False]
    client = server.client(ADMIN, "kubectl")
    for crd in definitions():
        client.create(CRDS, crd)
        stored, old = _kinds(crd, kueue_down)
        for kind in (stored, old):
            server.kinds.adapt(kind)
    kueue = Kueue(server, config)
    return kueue
