"""The settings of the sources of telemetry."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from autopilot.service.settings_fields import Address, Seconds, Section


class Prometheus(Section):
    """GPU telemetry, and metrics of inference servers, from a Prometheus."""

    url: Address = Field(description="address of the Prometheus, for example http://prometheus:9090")
    token_file: Path | None = Field(None, description="file with a bearer token for it")
    matchers: dict[str, str] = Field(
        default_factory=dict, description="label values that restrict every query, for example {cluster: a}"
    )
    timeout_s: Seconds = Field(20.0, gt=0, le=300, description="longest time of one query")


class Exporters(Section):
    """GPU telemetry by direct scrape of exporters."""

    targets: tuple[Address, ...] = Field(min_length=1, description="addresses of their metrics")
    interval_s: Seconds = Field(15.0, gt=0, le=600, description="time between two scrapes")
    timeout_s: Seconds = Field(5.0, gt=0, le=60, description="longest time of one scrape")


class Nvml(Section):
    """GPUs of this machine, read from its driver."""

    node: str = Field(min_length=1, description="name of this node in the cluster")


class Slo(Section):
    """Latency and demand of inference services, from a Prometheus that scrapes their servers."""

    url: Address = Field(description="address of the Prometheus")
    token_file: Path | None = Field(None, description="file with a bearer token for it")
    sources: tuple[str, ...] = Field(
        ("vllm", "sglang", "trtllm", "triton", "tgi", "dynamo", "llm-d"),
        min_length=1,
        description="kinds of servers, the first that knows a service counts: vllm, sglang, trtllm, triton, tgi, "
        "dynamo, llm-d; and, with names that are not verified, kserve, istio, envoy",
    )
    objectives: dict[str, Seconds] = Field(
        default_factory=dict, description="latency objective by service, rounded up to an edge of the buckets"
    )
    services: dict[str, str | tuple[str, ...]] = Field(
        default_factory=dict,
        description="name in a server's labels, or NAMESPACE/NAME -> service of the cluster, or a list of the pools "
        "behind one gateway; not needed for pods with a known owner",
    )
    matchers: dict[str, str] = Field(default_factory=dict, description="label values that restrict every query")
    interval_s: Seconds = Field(15.0, gt=0, le=600, description="time between two questions")
    min_requests: float = Field(
        100.0, ge=1, description="requests in five minutes below which p99 and violations are unknown"
    )


class Collectors(Section):
    """Sources of telemetry beside the cluster itself; several may be set."""

    prometheus: Prometheus | None = Field(None, description="a Prometheus that scrapes the GPU exporters")
    exporters: Exporters | None = Field(None, description="GPU exporters to scrape directly")
    nvml: Nvml | None = Field(None, description="the driver of this machine")
    slo: Slo | None = Field(None, description="a Prometheus that scrapes inference servers, gateways or meshes")
