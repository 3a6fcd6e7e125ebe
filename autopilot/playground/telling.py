"""Events of the playground: `kubectl describe` shows the reason of a standstill."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from apiserver.client import Client
from apiserver.errors import StatusError

Obj = dict[str, Any]


def tell(client: Client, about: Obj, namespace: str, reason: str, message: str) -> None:
    """A warning about an object: its apiVersion, kind, name and uid. A refusal by the server changes nothing."""
    space = namespace or "default"
    with suppress(StatusError):
        client.create(
            "events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": space},
                "involvedObject": about | {"namespace": space},
                "type": "Warning",
                "reason": reason,
                "message": message[:1000],
                "count": 1,
                "source": {"component": "playground"},
            },
        )
