"""What an actor is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from apiserver.client import Client
from apiserver.users import ADMIN, User

if TYPE_CHECKING:
    from apiserver.server import Server

MASTERS = "system:masters"  # actors may do all: the bootstrap roles of the real controllers are not there


class Actor(ABC):
    """A controller on a server: it reacts to changes (`server.store.subscribe`) and timers (`server.timeline.at`).

    It is called by the timeline only, never inside a request. It writes through `self.client`, as its user, under its
    field manager.
    """

    user: User = ADMIN
    manager: str = "actor"

    def __init__(self, server: Server) -> None:
        self.server = server
        all_rights = replace(self.user, groups=(*self.user.groups, MASTERS))
        self.client: Client = server.client(all_rights, self.manager)
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Subscribe to what it follows."""
