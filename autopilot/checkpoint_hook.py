"""Requests for checkpoints over HTTP, and the reports of a training program as metrics.

The second file of the helper `checkpoint.py`: copy it too, under this name, for `Trainer.serve` and for
GPU_AUTOPILOT_METRICS_FILE. It needs the standard library only, for Python 3.9 and newer.
"""

from __future__ import annotations

import hmac
import logging
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MOST_BYTES = 512 * 1024  # of a request
TIMEOUT_S = 5.0  # longest wait for a part of a request

_LOG = logging.getLogger("gpu_autopilot.checkpoint")


def metrics_text(ack: Any, step: int | None, step_at_s: float, namespace: str = "", pod: str = "") -> str:
    """`Ack` and heartbeat as metrics, in the text format of Prometheus. The controller needs the pod."""
    rows = []
    own = [f'{name}="{_label(value)}"' for name, value in (("namespace", namespace), ("pod", pod)) if value]
    if ack is not None:
        labels = ",".join([f'request="{_label(ack.id)}"', f'path="{_label(ack.path)}"', *own])
        rows.append(("checkpoint_step", "Training step of the newest complete checkpoint.", f"{{{labels}}} {ack.step}"))
        rows.append(("checkpoint_timestamp_seconds", "When it was complete.", f"{{{labels}}} {ack.at:.3f}"))
    alone = f"{{{','.join(own)}}}" if own else ""
    if step is not None:
        rows.append(("heartbeat_step", "Newest training step.", f"{alone} {step}"))
        rows.append(("heartbeat_timestamp_seconds", "When the newest step was reported.", f"{alone} {step_at_s:.3f}"))
    form = "# HELP gpu_autopilot_{0} {1}\n# TYPE gpu_autopilot_{0} gauge\ngpu_autopilot_{0}{2}\n"
    return "".join(form.format(*row) for row in rows)


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def replace(path: str, text: str) -> None:
    """Write a file; a reader sees the old or the new one. Raises OSError."""
    fresh = Path(f"{path}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def serve(trainer: Any, read: Callable[[str], Any], port: int, token: str, host: str) -> ThreadingHTTPServer:
    """Listen for requests in a thread of its own; returns the server; its `shutdown()` ends it. Raises OSError.

    POST /checkpoint takes the JSON of the annotation: 202 it waits, 409 another one waits, 400 it is refused. It needs
    `Authorization: Bearer TOKEN` if there is a `token`. GET /metrics has the metrics.
    """
    handler = type("Handler", (_Handler,), {"trainer": trainer, "token": token, "read": staticmethod(read)})
    server = ThreadingHTTPServer((host, port), handler)
    threading.Thread(target=server.serve_forever, name="checkpoint-hook", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    trainer: Any
    read: Callable[[str], Any]
    token: str
    timeout = TIMEOUT_S

    def do_POST(self) -> None:
        expected = f"Bearer {self.token}".encode()
        length = self.headers.get("Content-Length", "")
        if self.token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
            self._answer(401, "the token is missing or wrong")
        elif self.path != "/checkpoint":
            self._answer(404, "POST /checkpoint, or GET /metrics")
        elif not length.isdigit() or int(length) > MOST_BYTES:
            self._answer(411, "the body needs a Content-Length, at most 512 KiB")
        else:
            try:
                request = self.read(self.rfile.read(int(length)).decode(errors="replace"))
            except ValueError as error:
                self._answer(400, str(error))
            else:
                taken = self.trainer.post(request)
                self._answer(202 if taken else 409, "the checkpoint waits" if taken else "another request waits")

    def do_GET(self) -> None:
        known = self.path == "/metrics"
        self._answer(200 if known else 404, self.trainer.metrics() if known else "POST /checkpoint, or GET /metrics")

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        _LOG.debug(format, *args)
