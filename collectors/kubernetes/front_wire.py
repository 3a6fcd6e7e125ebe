"""Services, routes and InferencePools: the objects that lead requests to pods."""

from __future__ import annotations

from typing import Any

import msgspec

from collectors.kubernetes.wire import Object, Struct


class ServiceSpec(Struct):
    """The pods of a Service. Without a selector somebody else names its addresses."""

    selector: dict[str, str] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")


class Service(Object):
    """A Service."""

    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class Backend(Struct):
    """The target of a rule of a route. The default kind is Service, the default namespace that of the route."""

    kind: str = "Service"
    name: str = ""
    namespace: str = ""


class Rule(Struct):
    """A rule of a route."""

    backend_refs: list[Backend] | None = None


class RouteSpec(Struct):
    """The rules of a route."""

    rules: list[Rule] | None = None


class Route(Object):
    """An HTTPRoute or a GRPCRoute of the Gateway API."""

    spec: RouteSpec = msgspec.field(default_factory=RouteSpec)


class PoolSpec(Struct):
    """The pods of a pool: `matchLabels` since v1, before the labels themselves."""

    selector: dict[str, Any] | None = None


class InferencePool(Object):
    """An InferencePool of the Gateway API inference extension."""

    spec: PoolSpec = msgspec.field(default_factory=PoolSpec)
