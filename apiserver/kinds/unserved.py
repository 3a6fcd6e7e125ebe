"""Refused parts of pods: logs, commands inside, ports. They need containers, and none runs here."""

from __future__ import annotations

from apiserver.errors import bad_request, not_found
from apiserver.kinds.base import Call, State, Subresource
from apiserver.requests import Response

EVERY_VERB = ("create", "delete", "get", "patch", "update")


def no_containers(server: State, call: Call) -> Response:
    """Raises StatusError: 404 for an absent object, else 400 with the reason."""
    if server.store.get(call.kind.storage, call.namespace, call.name) is None:
        raise not_found(call.kind.named(call.name))
    raise bad_request(
        f"{call.subresource} of {call.kind.singular or call.kind.kind.lower()} {call.name} is not available: this is a "
        f"simulated cluster, and no container runs in it. Look at the object and its events instead: kubectl describe "
        f"{call.kind.singular or call.kind.kind.lower()} {call.name}"
    )


def _unserved(name: str, verbs: tuple[str, ...], body: str) -> Subresource:
    return Subresource(name, verbs, handler=no_containers, kind=("", "v1", body))


OF_PODS = {
    "attach": _unserved("attach", ("create", "get"), "PodAttachOptions"),
    "exec": _unserved("exec", ("create", "get"), "PodExecOptions"),
    "log": _unserved("log", ("get",), "Pod"),
    "portforward": _unserved("portforward", ("create", "get"), "PodPortForwardOptions"),
    "proxy": _unserved("proxy", EVERY_VERB, "PodProxyOptions"),
}
OF_NODES = {"proxy": _unserved("proxy", EVERY_VERB, "NodeProxyOptions")}
OF_SERVICES = {"proxy": _unserved("proxy", EVERY_VERB, "ServiceProxyOptions")}
