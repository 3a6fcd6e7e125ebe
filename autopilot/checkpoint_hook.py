"""Requests for checkpoints and pauses over HTTP, and the reports of a training program as metrics.

The second file of the helper `checkpoint.py`: copy it too, under this name, for `Trainer.serve` and for
GPU_AUTOPILOT_METRICS_FILE. It needs the standard library only, for Python 3.9 and newer.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MOST_BYTES = 512 * 1024  # of a request
TIMEOUT_S = 5.0  # longest wait for a part of a request
PAUSE_S = 300.0  # most and usual length of a pause that is not asked for again: half of the time-out of NCCL's watchdog
LOOK_S = 1.0  # a paused program looks for a checkpoint that is due, and for SIGTERM, this often
BEAT_S = 60.0  # and writes its heartbeat this often

_LOG = logging.getLogger("gpu_autopilot.checkpoint")


def metrics_text(ack: Any, step: int | None, step_at_s: float, pod: Any, paused: bool | None = None) -> str:
    """`Ack` and heartbeat of a pod as metrics, in the text format of Prometheus. The controller needs the pod."""
    rows = []
    own = [f'{key}="{_label(value)}"' for key, value in (("namespace", pod.namespace), ("pod", pod.name)) if value]
    if ack is not None:
        labels = ",".join([f'request="{_label(ack.id)}"', f'path="{_label(ack.path)}"', *own])
        rows.append(("checkpoint_step", "Training step of the newest complete checkpoint.", f"{{{labels}}} {ack.step}"))
        rows.append(("checkpoint_timestamp_seconds", "When it was complete.", f"{{{labels}}} {ack.at:.3f}"))
    alone = f"{{{','.join(own)}}}" if own else ""
    if step is not None:
        rows.append(("heartbeat_step", "Newest training step.", f"{alone} {step}"))
        rows.append(("heartbeat_timestamp_seconds", "When the newest step was reported.", f"{alone} {step_at_s:.3f}"))
    if paused is not None:
        rows.append(("paused", "1 while the program waits at a step boundary.", f"{alone} {int(paused)}"))
    form = "# HELP gpu_autopilot_{0} {1}\n# TYPE gpu_autopilot_{0} gauge\ngpu_autopilot_{0}{2}\n"
    return "".join(form.format(*row) for row in rows)


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def replace(path: str, text: str) -> None:
    """Write a file; a reader sees the old or the new one. Raises OSError."""
    fresh = Path(f"{path}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


class Pause:
    """A pause of the training at its next step boundary: the memory is kept, and nothing is computed.

    It ends at `/resume`, and by itself `PAUSE_S` after it was last asked for: a controller that is gone keeps nobody
    paused. A checkpoint that becomes due is written meanwhile, after which the next boundary holds again. SIGTERM ends
    it. `clock_s` never goes back.
    """

    def __init__(self, trainer: Any, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._trainer, self._clock_s = trainer, clock_s
        self._changed, self._until_s = threading.Condition(), -math.inf

    def ask(self, seconds: float) -> bool:
        """Pause for `seconds` from now, in place of an earlier request; False if the program is being stopped."""
        with self._changed:
            if math.isinf(self._trainer.grace_left_s()):
                self._until_s = self._clock_s() + seconds
            return math.isinf(self._trainer.grace_left_s())

    def end(self) -> bool:
        """Go on; False if there was no pause."""
        with self._changed:
            asked, self._until_s = self._until_s > self._clock_s(), -math.inf
            self._changed.notify_all()
            return asked

    def hold(self) -> None:
        """Wait while the pause lasts and nothing is due. The training calls it at each step boundary."""
        if self._until_s == -math.inf:
            return
        with self._changed:
            told_s = -math.inf
            while self._until_s > self._clock_s() and not self._gives_way():
                if self._clock_s() - told_s >= BEAT_S:
                    told_s = self._clock_s()
                    self._trainer.report_paused(True)
                self._changed.wait(min(LOOK_S, max(self._until_s - self._clock_s(), 0.0)))
            if self._until_s <= self._clock_s():
                self._until_s = -math.inf
            if told_s > -math.inf:
                self._trainer.report_paused(False)

    def _gives_way(self) -> bool:
        """A checkpoint is asked for, or SIGTERM came."""
        return self._trainer.request() is not None or self._trainer.grace_left_s() < math.inf


def read_pause(text: str) -> float:
    """Seconds of a pause from the JSON of its request, `PAUSE_S` where it names none. Raises ValueError."""
    document = json.loads(text) if text.strip() else {}
    seconds = document.get("seconds", PAUSE_S) if isinstance(document, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= PAUSE_S:
        raise ValueError(f'"seconds" is {seconds!r}; write a number above 0, at most {PAUSE_S:g}')
    return float(seconds)


def serve(trainer: Any, read: Callable[[str], Any], port: int, token: str, host: str) -> ThreadingHTTPServer:
    """Listen for requests in a thread of its own; returns the server; its `shutdown()` ends it. Raises OSError.

    POST /checkpoint takes the JSON of the annotation: 202 it waits, 409 another one waits, 400 it is refused. It needs
    `Authorization: Bearer TOKEN` if there is a `token`. POST /pause (JSON: `seconds`) and /resume need a `token`, and
    are refused with 403 without one. GET /metrics has the metrics.
    """
    pause = Pause(trainer)
    own = {"trainer": trainer, "token": token, "read": staticmethod(read), "pause": pause}
    handler = type("Handler", (_Handler,), own)
    if token:
        trainer.hold = pause.hold
    server = ThreadingHTTPServer((host, port), handler)
    threading.Thread(target=server.serve_forever, name="checkpoint-hook", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    trainer: Any
    pause: Pause
    read: Callable[[str], Any]
    token: str
    timeout = TIMEOUT_S

    def do_POST(self) -> None:
        expected = f"Bearer {self.token}".encode()
        length = self.headers.get("Content-Length", "")
        if self.token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
            self._answer(401, "the token is missing or wrong")
        elif self.path not in {"/checkpoint", "/pause", "/resume"}:
            self._answer(404, "POST /checkpoint, /pause or /resume, or GET /metrics")
        elif self.path != "/checkpoint" and not self.token:
            self._answer(403, "pauses need a token: give one to `serve`")
        elif not length.isdigit() or int(length) > MOST_BYTES:
            self._answer(411, "the body needs a Content-Length, at most 512 KiB")
        else:
            try:
                self._take(self.rfile.read(int(length)).decode(errors="replace"))
            except (ValueError, RecursionError) as error:
                self._answer(400, str(error))

    def _take(self, text: str) -> None:
        if self.path == "/checkpoint":
            taken = self.trainer.post(self.read(text))
            self._answer(202 if taken else 409, "the checkpoint waits" if taken else "another request waits")
        elif self.path == "/pause":
            taken = self.pause.ask(read_pause(text))
            self._answer(202 if taken else 409, "it pauses at its next step" if taken else "it is being stopped")
        else:
            ended = self.pause.end()
            self._answer(202 if ended else 409, "it goes on" if ended else "it is not paused")

    def do_GET(self) -> None:
        known = self.path == "/metrics"
        self._answer(
            200 if known else 404,
            self.trainer.metrics() if known else "POST /checkpoint, /pause or /resume, or GET /metrics",
        )

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        _LOG.debug(format, *args)
