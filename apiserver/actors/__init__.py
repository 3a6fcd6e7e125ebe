"""The controllers of a cluster, small: each follows the store and writes through the server."""

from __future__ import annotations

from apiserver.actors.base import Actor

ACTORS: tuple[type[Actor], ...] = ()  # in the order in which they see a change
