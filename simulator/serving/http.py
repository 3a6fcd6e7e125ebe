"""The protocol of a served cluster over local HTTP. Every route carries one message of `ServedCluster`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Protocol

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from autopilot.core.model.records import Instruction
from simulator.serving import wire

if TYPE_CHECKING:
    from simulator.serving.served import ServedCluster

LONGEST_WAIT_S = 30.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Protocol):
    """One kind of metrics target: its targets by name, and the text of one."""

    def targets(self) -> Mapping[str, Mapping[str, str]]:
        """Name -> labels of the target, for Prometheus' HTTP service discovery."""
        ...

    def text(self, target: str, now_s: float) -> bytes | None:
        """The exposition of one target; None: this scrape gets no answer. Raises `KeyError` for an unknown target."""
        ...


def cluster_app(cluster: ServedCluster, metrics: Mapping[str, Exposition]) -> FastAPI:
    """The application. `metrics` by kind: `exporters` (one target a node), `servers` (one a service)."""
    app = FastAPI(title="simulated cluster", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    def health() -> dict[str, str]:
        return {"run": cluster.run}

    @app.get("/v1/clock")
    def clock() -> dict[str, object]:
        return asdict(cluster.clock())

    @app.get("/v1/state")
    def state(
        ended: int = 0, deleted: int = 0, inventory: int = -1, run: Annotated[str, Query(max_length=64)] = ""
    ) -> Response:
        seen, known = ((ended, deleted), inventory) if run == cluster.run else ((0, 0), -1)
        return Response(wire.encode(cluster.state(seen, known)), media_type=wire.MEDIA_TYPE)

    @app.get("/v1/changes")
    def changes(after: int = -1, wait_s: float = 10.0) -> dict[str, int]:
        return {"revision": cluster.changes(after, min(max(wait_s, 0.0), LONGEST_WAIT_S))}

    @app.post("/v1/effects")
    async def effects(request: Request) -> Response:
        body = await request.body()
        try:
            instruction = wire.decode(body, Instruction)
        except ValueError as error:
            raise HTTPException(400, f"not an instruction: {error}") from error
        outcome = await run_in_threadpool(cluster.apply, instruction)
        return Response(wire.encode(outcome), media_type=wire.MEDIA_TYPE)

    add_exposition(app, cluster.at_now, metrics)
    return app


def add_exposition(
    app: FastAPI, at_now: Callable[[Callable[[float], bytes]], bytes], metrics: Mapping[str, Exposition]
) -> None:
    """Routes for Prometheus: the targets of each kind, and their texts. `at_now(read)`: `read(now_s)`, undisturbed."""

    @app.get("/sd/{kind}")
    def discovery(kind: str, request: Request) -> list[dict[str, object]]:
        """Targets for `http_sd_configs` of Prometheus."""
        found = _exposition(metrics, kind).targets()
        host = request.url.netloc
        return [
            {"targets": [host], "labels": {"__metrics_path__": f"/{kind}/{name}/metrics", **labels}}
            for name, labels in found.items()
        ]

    @app.get("/{kind}/{target}/metrics")
    def exposition(kind: str, target: str) -> Response:
        found = _exposition(metrics, kind)
        if target not in found.targets():
            raise HTTPException(404, f"{kind} has no target {target!r}")
        body = at_now(lambda now_s: found.text(target, now_s) or b"")
        if not body:
            raise HTTPException(503, f"{target}: the scrape got no answer")
        return Response(body, media_type=TEXT)


def _exposition(metrics: Mapping[str, Exposition], kind: str) -> Exposition:
    if kind not in metrics:
        raise HTTPException(404, f"{kind!r} is not one of {', '.join(metrics)}")
    return metrics[kind]
