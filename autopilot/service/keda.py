"""Floors of services for KEDA: a server of its external scaler interface (type `external` and `external-push`).

A floor counts until its end by the clock of the cluster, independent of the loop. A service unknown to the view, and a
view not yet there, are errors and not a floor of 0: then KEDA and its HPA keep their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import grpc
import numpy as np

from autopilot.contract.notes import shown
from autopilot.contract.scaling import FLOOR_METRIC
from autopilot.core.model.errors import InputError
from autopilot.service.keda_wire import MESSAGES, METHODS, SERVICE
from autopilot.service.listeners import Certificates, parse_listen
from autopilot.service.published import Published, Publisher

FIELD = "scale.keda.listen"
THREADS = 16
STREAMS = 8
"""Most open streams at once: each holds a thread, and the others answer the polls."""
OF_NAMESPACE = 2
"""Most of them of one namespace. Its other ScaledObjects poll."""
LOOK_S = 5.0
"""Longest time for a stream to notice the end of a floor or of its client."""


class Refused(Exception):  # noqa: N818 - it becomes a status of gRPC
    """A request without an answer: the status and its text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(slots=True)
class Floors:
    """The floors of the latest tick, by the clock of the cluster."""

    publisher: Publisher
    clock_s: Callable[[], float]

    def of(self, reference: Any) -> int:
        """The floor of the service named by a ScaledObject; 0 for none. Raises `Refused`."""
        name = reference.scalerMetadata.get("service", "")
        if not name:
            about = shown(f"{reference.namespace}/{reference.name}")
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"ScaledObject {about}: the metadata of the trigger has no `service`; "
                "write the name of the Deployment or StatefulSet",
            )
        latest = self.publisher.latest
        if latest is None:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the controller has not looked at the cluster yet")
        service = f"{reference.namespace}/{name}"
        table = latest.observation.snapshot.services
        rows = np.flatnonzero(table.id == service).tolist()
        if not rows or str(table.id[rows[0]]) != service:  # the table drops a NUL at the end of a text
            raise Refused(grpc.StatusCode.NOT_FOUND, f"the controller sees no service {shown(service)} with GPUs")
        return int(table.floor[rows[0]]) if table.floor_until_s[rows[0]] > self.clock_s() else 0


class KedaServer:
    """The server. It answers from `start` to `close`."""

    def __init__(self, floors: Floors, listen: str, tls: Certificates | None = None) -> None:
        """Bind at once. Raises `InputError` for an address in use, or an unusable certificate."""
        self._floors = floors
        self._open: Counter[str] = Counter()  # streams by namespace
        self._counting = Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="keda")
        self._server = grpc.server(self._pool, options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        host, port = parse_listen(listen, FIELD)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = (
                self._server.add_insecure_port(address)
                if tls is None
                else self._server.add_secure_port(address, _credentials(tls))
            )
        except RuntimeError as error:
            raise InputError(
                f"{FIELD}: cannot listen on {listen}: {error}; stop the other process, or give another port"
            ) from error
        self.address = f"{host}:{bound}"

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def close(self) -> None:
        """End streams, and stop listening."""
        self._server.stop(grace=1.0).wait()
        self._pool.shutdown()

    def _handlers(self) -> dict[str, Any]:
        answers: dict[str, Callable[[Any, Any], Any]] = {
            "IsActive": self._answering(lambda request: self._active(self._floors.of(request))),
            "StreamIsActive": self._stream,
            "GetMetricSpec": self._answering(self._spec),
            "GetMetrics": self._answering(self._metrics),
        }
        handlers = {}
        for name, (takes, gives) in METHODS.items():
            stream = name.startswith("Stream")
            make = grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
            handlers[name] = make(
                answers[name], MESSAGES[takes].FromString, response_serializer=MESSAGES[gives].SerializeToString
            )
        return handlers

    @staticmethod
    def _answering(answer: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def answered(request: Any, context: Any) -> Any:
            try:
                return answer(request)
            except Refused as refused:
                context.abort(refused.code, refused.text)

        return answered

    @staticmethod
    def _active(floor: int) -> Any:
        return MESSAGES["IsActiveResponse"](result=floor > 0)

    def _spec(self, reference: Any) -> Any:
        self._floors.of(reference)  # a trigger without a possible answer is refused here already
        spec = MESSAGES["MetricSpec"](metricName=FLOOR_METRIC, targetSize=1, targetSizeFloat=1.0)
        return MESSAGES["GetMetricSpecResponse"](metricSpecs=[spec])

    def _metrics(self, request: Any) -> Any:
        """The floor; with a target of 1 a replica, the HPA wants as many replicas."""
        floor = self._floors.of(request.scaledObjectRef)
        value = MESSAGES["MetricValue"](metricName=FLOOR_METRIC, metricValue=floor, metricValueFloat=float(floor))
        return MESSAGES["GetMetricsResponse"](metricValues=[value])

    def _stream(self, reference: Any, context: Any) -> Iterator[Any]:
        """True while there is a floor: once at the beginning, then at each change."""
        space = reference.namespace
        taken = self._take(space)
        if taken:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{taken}; use the trigger `external`")
        said: bool | None = None
        latest: Published | None = None
        try:
            while context.is_active() and not self._floors.publisher.closed:
                try:
                    active = self._floors.of(reference) > 0
                except Refused as refused:
                    context.abort(refused.code, refused.text)
                if active != said:
                    said = active
                    yield self._active(int(active))
                latest = self._floors.publisher.wait_for_next(latest, LOOK_S) or latest
        finally:
            with self._counting:
                self._open[space] -= 1
                self._open += Counter()  # drops zeros

    def _take(self, space: str) -> str:
        """Count one more stream of a namespace; returns the reason for a refusal, "" for none."""
        with self._counting:
            if self._open[space] >= OF_NAMESPACE:
                return f"{OF_NAMESPACE} streams of namespace {shown(space)} are open"
            if self._open.total() >= STREAMS:
                return f"{STREAMS} streams are open"
            self._open[space] += 1
        return ""


def _credentials(tls: Certificates) -> Any:
    tls.checked(FIELD)
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.ssl_server_credentials([pair], tls.client_ca.read_bytes(), require_client_auth=True)
