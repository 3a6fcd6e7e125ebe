"""The base class of the actors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from apiserver.client import Client
from apiserver.store import Listener
from apiserver.users import ADMIN, User

if TYPE_CHECKING:
    from apiserver.server import Server

MASTERS = "system:masters"  # actors may do all: the bootstrap roles of the real controllers are not there


CONTROLLER_MANAGER = "kube-controller-manager"


class Actor(ABC):
    """A controller on a server: it reacts to changes (`follow`) and timers (`self.clock.at`).

    It is called by the clock of its process only, never inside a request: `server.process(name)` stops it. It writes
    through `self.client`, as its user, under its field manager.
    """

    user: User = ADMIN
    manager: str = "actor"
    process: str = CONTROLLER_MANAGER

    def __init__(self, server: Server) -> None:
        self.server = server
        self.clock = server.process(self.process)
        all_rights = replace(self.user, groups=(*self.user.groups, MASTERS))
        self.client: Client = server.client(all_rights, self.manager)
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Subscribe to the followed resources."""

    def follow(self, resources: str | Iterable[str], listener: Listener) -> None:
        """Call `listener` for every change of the resources, unless the process is stopped."""
        self.server.store.subscribe(resources, listener, self.clock)
