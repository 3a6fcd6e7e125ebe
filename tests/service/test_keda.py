"""Floors for KEDA, by a gRPC client over loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from autopilot.contract.scaling import FLOOR_METRIC
from autopilot.core.model.errors import InputError
from autopilot.operate.run import open_keda
from autopilot.service import keda
from autopilot.service.keda import Floors, KedaServer
from autopilot.service.keda_wire import FIELDS, MESSAGES, METHODS, SERVICE
from autopilot.service.listeners import Certificates
from autopilot.service.published import Publisher
from autopilot.service.settings import Keda, Scale, Settings
from tests.kits.certificates import Authority
from tests.kits.core_world import world
from tests.kits.demand_world import serving
from tests.kits.http_kit import published
from tests.kits.prometheus_kit import until
from tests.tidy.tree import ROOT


class Client:
    """KEDA's side."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def ask(self, method: str, service: str | None = "chat", *, namespace: str = "team") -> Any:
        """The answer of a method for a ScaledObject `team/so` whose trigger names a service."""
        reference = MESSAGES["ScaledObjectRef"](name="so", namespace=namespace)
        if service is not None:
            reference.scalerMetadata["service"] = service
        takes, gives = METHODS[method]
        request = reference
        if takes == "GetMetricsRequest":
            request = MESSAGES[takes](scaledObjectRef=reference, metricName=FLOOR_METRIC)
        stream = method.startswith("Stream")
        make = self._channel.unary_stream if stream else self._channel.unary_unary
        call = make(f"/{SERVICE}/{method}", MESSAGES[takes].SerializeToString, MESSAGES[gives].FromString)
        return call(request, timeout=20)

    def refused(self, *args: Any, **more: Any) -> tuple[str, str]:
        """Status and text of a refusal."""
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(*args, **more)
        return caught.value.code().name, str(caught.value.details())


@dataclass
class Scaler:
    """A server, its publisher, and the time of the cluster."""

    server: KedaServer
    publisher: Publisher
    client: Client
    now_s: float = 100.0

    def floor(self, replicas: int, until_s: float = 1000.0) -> None:
        """A tick that shows a floor of `team/chat`."""
        seen = serving(world("1x8", []), id=["team/chat"], floor=[replicas], floor_until_s=[until_s])
        self.publisher.publish(published(seen))


def refusal(stream: Any) -> tuple[str, str]:
    """Status and text of a stream that is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    return caught.value.code().name, str(caught.value.details())


@pytest.fixture
def scaler() -> Iterator[Scaler]:
    """A server without encryption."""
    publisher = Publisher()
    made: list[Scaler] = []
    server = KedaServer(Floors(publisher, lambda: made[0].now_s), "127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(server.address) as channel:
        made.append(Scaler(server, publisher, Client(channel)))
        yield made[0]
        publisher.close()
        server.close()


def test_the_messages_are_those_of_the_proto_file() -> None:
    """Names, numbers and types; the file is what KEDA's users compare with their own."""
    text = (ROOT / "autopilot" / "service" / "externalscaler.proto").read_text(encoding="utf-8")
    messages = dict(re.findall(r"message (\w+) \{\n(.*?)\n\}", text, re.DOTALL))
    found = {
        name: {field: (int(number), kind) for kind, field, number in re.findall(r"  (.+) (\w+) = (\d+);", body)}
        for name, body in messages.items()
    }
    whole = {"map": "map<string, string>"}
    assert found == {
        name: {field: (number, whole.get(kind, kind)) for field, (number, kind) in fields.items()}
        for name, fields in FIELDS.items()
    }
    rpcs = re.findall(r"rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\)", text)
    assert {name: (takes, gives) for name, takes, _, gives in rpcs} == METHODS
    assert all(bool(stream) == name.startswith("Stream") for name, _, stream, _ in rpcs)
    assert f"package {SERVICE.partition('.')[0]};" in text


def test_bytes_are_those_of_the_protocol() -> None:
    """A request as another implementation encodes it."""
    raw = b"\x0a\x02so\x12\x04team\x1a\x0f\x0a\x07service\x12\x04chat"
    reference = MESSAGES["ScaledObjectRef"].FromString(raw)
    assert (reference.name, reference.namespace, dict(reference.scalerMetadata)) == ("so", "team", {"service": "chat"})
    value = MESSAGES["MetricValue"](metricName="m", metricValue=3, metricValueFloat=3.0)
    assert value.SerializeToString() == b"\x0a\x01m\x10\x03\x19\x00\x00\x00\x00\x00\x00\x08\x40"


def test_a_floor_is_answered_until_its_time_is_over(scaler: Scaler) -> None:
    """The time is that of the cluster; no tick is needed for the end."""
    scaler.floor(5)
    (spec,) = scaler.client.ask("GetMetricSpec").metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("gpu-autopilot-floor", 1, 1.0)
    (value,) = scaler.client.ask("GetMetrics").metricValues
    assert (value.metricName, value.metricValue, value.metricValueFloat) == ("gpu-autopilot-floor", 5, 5.0)
    assert scaler.client.ask("IsActive").result
    scaler.now_s = 1000.0
    assert scaler.client.ask("GetMetrics").metricValues[0].metricValue == 0
    assert not scaler.client.ask("IsActive").result


def test_what_is_not_known_is_an_error_and_not_a_floor_of_zero(scaler: Scaler) -> None:
    """Before the first tick, for a service that the view does not have, and without a name."""
    assert scaler.client.refused("GetMetrics")[0] == "UNAVAILABLE"
    scaler.floor(5)
    for method in METHODS:
        if not method.startswith("Stream"):
            code, text = scaler.client.refused(method, "other")
            assert (code, text) == ("NOT_FOUND", "the controller sees no service 'team/other' with GPUs")
    assert scaler.client.refused("GetMetrics", namespace="elsewhere")[0] == "NOT_FOUND"
    code, text = scaler.client.refused("GetMetricSpec", None)
    assert code == "INVALID_ARGUMENT"
    assert "ScaledObject 'team/so': the metadata of the trigger has no `service`" in text


def test_a_stream_tells_each_change_once(scaler: Scaler) -> None:
    """At the beginning, when a floor comes, and when it goes; it ends with the service."""
    scaler.floor(0)
    stream = scaler.client.ask("StreamIsActive")
    assert not next(stream).result
    for replicas in (5, 6, 0):
        scaler.floor(replicas)
        if replicas != 6:
            assert next(stream).result == bool(replicas)
    scaler.publisher.close()
    assert list(stream) == []


def test_more_streams_than_threads_can_serve_are_refused(scaler: Scaler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls are still answered."""
    monkeypatch.setattr(keda, "STREAMS", 1)
    scaler.floor(3)
    first = scaler.client.ask("StreamIsActive")
    assert next(first).result
    with pytest.raises(grpc.RpcError) as caught:
        next(scaler.client.ask("StreamIsActive"))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert scaler.client.ask("GetMetrics").metricValues[0].metricValue == 3


def test_one_namespace_does_not_use_up_the_streams_of_all(scaler: Scaler) -> None:
    """Its third stream is refused, and those of another one are served; one that ends makes room."""
    scaler.floor(3)
    streams = [scaler.client.ask("StreamIsActive") for _ in range(keda.OF_NAMESPACE)]
    assert all(next(each).result for each in streams)
    code, text = refusal(scaler.client.ask("StreamIsActive"))
    assert (code, text) == ("RESOURCE_EXHAUSTED", "2 streams of namespace 'team' are open; use the trigger `external`")
    assert refusal(scaler.client.ask("StreamIsActive", namespace="other"))[0] == "NOT_FOUND"
    for each in streams:
        each.cancel()

    def again() -> bool:
        scaler.publisher.publish(published(world("1x8", [])))  # a stream sees at a tick that its client has gone
        scaler.floor(3)
        try:
            return bool(next(scaler.client.ask("StreamIsActive")).result)
        except grpc.RpcError:
            return False

    assert until(again, "a stream of the namespace after the others have ended")


@pytest.mark.parametrize("name", ["x" * 300_000, "\x1b[31m\nok\u202e", "chat\x00"])
def test_a_name_of_a_service_that_says_anything_is_refused_in_one_line(scaler: Scaler, name: str) -> None:
    """Nothing of it acts on a terminal, and the text fits the answer."""
    scaler.floor(3)
    code, text = scaler.client.refused("GetMetrics", name)
    assert code == "NOT_FOUND"
    assert text.isprintable()
    assert len(text) < 200


def test_with_certificates_only_known_clients_are_answered(tmp_path: Path) -> None:
    """Mutual TLS, as for deliveries of alerts."""
    ours = Authority(tmp_path, "ours")
    shown, client = ours.sign("server"), ours.sign("keda")
    publisher = Publisher()
    tls = Certificates(shown.certificate, shown.key, ours.certificate)
    server = KedaServer(Floors(publisher, lambda: 0.0), "127.0.0.1:0", tls)
    server.start()
    root = ours.certificate.read_bytes()
    known = grpc.ssl_channel_credentials(root, client.key.read_bytes(), client.certificate.read_bytes())
    try:
        with grpc.secure_channel(server.address, known) as channel:
            assert Client(channel).refused("GetMetrics")[1] == "the controller has not looked at the cluster yet"
        with grpc.secure_channel(server.address, grpc.ssl_channel_credentials(root)) as channel:
            assert Client(channel).refused("GetMetrics")[0] == "UNAVAILABLE"
    finally:
        server.close()


def test_wrong_settings_are_errors_at_the_start(scaler: Scaler) -> None:
    """An address in use, and half a certificate."""
    with pytest.raises(InputError, match=r"scale\.keda\.listen: cannot listen on"):
        KedaServer(Floors(scaler.publisher, lambda: 0.0), scaler.server.address)
    with pytest.raises(ValueError, match="belong together"):
        Keda(listen="127.0.0.1:0", key=Path("k.pem"))


def test_the_service_serves_it() -> None:
    """`scale.keda.listen` is enough; without it nothing listens."""
    wired: Any = SimpleNamespace(publisher=Publisher(), clock_s=lambda: 0.0)
    wired.settings = Settings(scale=Scale(keda=Keda(listen="127.0.0.1:0")))
    server = open_keda(wired)
    assert server is not None
    with grpc.insecure_channel(server.address) as channel:
        assert Client(channel).refused("GetMetrics")[0] == "UNAVAILABLE"
    server.close()
    wired.settings = Settings()
    assert open_keda(wired) is None
