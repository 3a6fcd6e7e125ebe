"""Checkpoints on request, for training programs in a pod of a cluster that gpu-autopilot manages.

It uses the standard library only, and imports nothing of the product. Copy this file into an image, under any name:

    from autopilot import checkpoint

    checkpoint.watch_sigterm(grace_s=120)
    for step in range(first_step, last_step):
        train(step)
        checkpoint.heartbeat(step)
        if checkpoint.should_checkpoint():
            path = save(step)
            checkpoint.acknowledge(step, path)
        if checkpoint.should_stop():
            break

docs/checkpoints.md has the annotations, the volume and the rights that the pod needs. For Python 3.9 and newer.
"""

from __future__ import annotations

import functools
import hmac
import json
import logging
import math
import os
import re
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import quote

PREFIX = "gpu-autopilot.io/"
REQUEST = PREFIX + "checkpoint-request"  # JSON: id, deadline (seconds since 1970, or RFC 3339)
ACK = PREFIX + "checkpoint-ack"  # JSON: id, step, path, at (seconds since 1970)
HEARTBEAT, MODEL_FLOPS = PREFIX + "heartbeat", PREFIX + "model-flops-s"  # time of the newest step (s), and its FLOP/s
LAST_CHECKPOINT = PREFIX + "last-checkpoint"  # when the newest checkpoint was complete, in seconds since 1970

ANNOTATIONS_FILE = "/etc/podinfo/annotations"
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
GRACE_S = 30.0  # terminationGracePeriodSeconds of a pod that sets none
LATE_S = 600.0  # a request whose deadline passed longer ago was given up by its sender: it is not answered
CHECK_S = 1.0  # least time between two looks at the file; the kubelet refreshes it about once a minute
HEARTBEAT_S = 60.0  # least time between two heartbeats that are written
RETRY_S = 5.0  # least time between two attempts to write what could not be written
TIMEOUT_S = 5.0  # longest time that one request to the API server keeps a training loop waiting
MOST_BYTES = 512 * 1024  # an object holds at most 256 KiB of annotations; escaped text is longer

_LOG = logging.getLogger("gpu_autopilot.checkpoint")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Request(NamedTuple):
    """A request to write a checkpoint. `deadline_s`: seconds since 1970; infinite where none was stated."""

    id: str
    deadline_s: float = math.inf


class Ack(NamedTuple):
    """A checkpoint that is complete. `id` is the newest request that it or an earlier one answers, "" for none."""

    id: str
    step: int
    path: str
    at: float  # seconds since 1970; the names are those of the annotation


def read_annotations(text: str) -> dict[str, str]:
    """Annotations in the form of the downward API: one `key="value"` a line, the value escaped as Go's %q does.

    A line of another form is left out: the rest of the file still counts.
    """
    found = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals and len(value) >= 2 and value[0] == value[-1] == '"':
            found[key] = _ESCAPE.sub(_unescaped, value[1:-1])
    return found


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _SHORT.get(code, code)


def read_request(text: str) -> Request:
    """A request from its JSON. Raises ValueError, which names the problem."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    name = document.get("id") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError('it has no "id", a text')
    deadline = document.get("deadline")
    try:
        if isinstance(deadline, str):
            deadline = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", deadline)).timestamp()  # Z: from Python 3.11
        return Request(name, math.inf if deadline is None else float(deadline))
    except (TypeError, ValueError) as error:
        raise ValueError(f'"deadline" is {deadline!r}; write seconds since 1970 or an RFC 3339 time') from error


class AnnotationsFile:
    """The annotations of the own pod, read again when the file is another one.

    The kubelet replaces the whole volume by renaming a symbolic link, so that a reader sees the old or the new file. A
    file that is absent or unreadable for a moment changes nothing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, str] = {}
        self._seen: tuple[int, ...] = ()

    def refresh(self) -> None:
        """Read the file if it was replaced."""
        try:
            with open(self.path, "rb") as opened:  # noqa: PTH123 - its state and its bytes are of one file
                state = os.fstat(opened.fileno())
                seen = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
                if seen == self._seen:
                    return
                text = opened.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            return
        self._seen = seen
        # a volume may also show one annotation alone: then the file holds its value, unescaped
        self.values = {REQUEST: text} if text.lstrip().startswith("{") else read_annotations(text)


class OwnPod:
    """The own pod on the API server, patched with the token of its service account."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._account = Path(environment.get("GPU_AUTOPILOT_ACCOUNT_FOLDER", ACCOUNT_FOLDER))
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        self._server = f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""
        self.namespace = environment.get("POD_NAMESPACE", "") or self._of_account("namespace")
        self.name = environment.get("POD_NAME", "")
        self._uid = environment.get("POD_UID", "")

    def _of_account(self, name: str) -> str:
        try:
            return (self._account / name).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def annotate(self, values: Mapping[str, str]) -> str:
        """Write annotations, under the condition that the pod is still the same; the problem, or an empty text."""
        needed = {"KUBERNETES_SERVICE_HOST": self._server, "POD_NAMESPACE": self.namespace, "POD_NAME": self.name}
        needed |= {"POD_UID": self._uid, f"{self._account}/token": self._of_account("token")}
        missing = ", ".join(name for name, value in needed.items() if not value)
        if missing:
            return f"the pod does not have {missing}"
        path = f"/api/v1/namespaces/{quote(self.namespace)}/pods/{quote(self.name)}"
        patch = {"metadata": {"uid": self._uid, "annotations": dict(values)}}
        request = urllib.request.Request(  # noqa: S310 - the scheme is always https
            f"{self._server}{path}?fieldManager=gpu-autopilot-trainer",
            data=json.dumps(patch).encode(),
            method="PATCH",
            headers={"Content-Type": "application/merge-patch+json", "Accept": "application/json"},
        )
        request.add_header("Authorization", f"Bearer {self._of_account('token')}")  # read anew: it is renewed
        try:
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context):  # noqa: S310 - as above
                return ""
        except urllib.error.HTTPError as error:
            return f"the API server answered {error.code}: {error.read(2000).decode(errors='replace')}"
        except (OSError, ValueError) as error:
            return f"the API server did not answer: {error}"


def metrics_text(ack: Ack | None, step: int | None, step_at_s: float, namespace: str = "", pod: str = "") -> str:
    """Acknowledgement and heartbeat as metrics, in the text format of Prometheus. The controller needs the pod."""
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


class Trainer:
    """What a training loop asks and reports. One for each process; safe to use from several threads.

    `environment` holds the settings of docs/checkpoints.md. `now_s` is the time in seconds since 1970. No method
    raises because of the cluster: what cannot be read is no request, and what cannot be written is logged, and tried
    again in later calls.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._file = AnnotationsFile(environment.get("GPU_AUTOPILOT_ANNOTATIONS", ANNOTATIONS_FILE))
        self._pod = OwnPod(environment)
        self._metrics_file = environment.get("GPU_AUTOPILOT_METRICS_FILE", "")
        self._lock = threading.RLock()
        self._posted: Request | None = None  # by the HTTP hook
        self._ack: Ack | None = None
        self._answered: set[str] = set()  # ids of requests
        self._unwritten: dict[str, str] = {}  # annotations that the API server does not have yet
        self._checked_s = self._tried_s = self._beat_s = -math.inf
        self._step: int | None = None
        self._step_at_s = self._term_s = self._flops = math.nan
        self._grace_s = GRACE_S
        self._asked_s = self._save_s = math.nan  # since when a save is due, and what the last one took
        self._warned: set[str] = set()

    def should_checkpoint(self) -> bool:
        """Whether to write a checkpoint now: a request waits, or SIGTERM came and there was progress since the last.

        After SIGTERM it is False if the last checkpoint took longer than the grace that is left: it would be cut off.
        """
        with self._lock:
            self._flush()
            due, left_s = self.request() is not None, self.grace_left_s()
            if left_s < math.inf:
                due |= self._ack is None or self._ack.step != self._step
                due &= not self._save_s > left_s
            if due and math.isnan(self._asked_s):
                self._asked_s = self._now_s()
            return due

    def request(self) -> Request | None:
        """The request that waits for an acknowledgement; None if there is none."""
        with self._lock:
            now_s = self._now_s()
            if now_s - self._checked_s >= CHECK_S or now_s < self._checked_s:
                self._checked_s = now_s
                self._file.refresh()
            found = (self._posted, self._annotated())
            return next((each for each in found if each is not None and self._waits(each, now_s)), None)

    def _annotated(self) -> Request | None:
        text = self._file.values.get(REQUEST, "")
        try:
            return read_request(text) if text else None
        except ValueError as error:
            self._warn(f"the annotation {REQUEST} is ignored: {error}")
            return None

    def _waits(self, request: Request, now_s: float) -> bool:
        if request.deadline_s + LATE_S < now_s or request.id in self._answered:
            return False
        try:  # a container that was started again finds here what it acknowledged before
            return read_request(self._file.values.get(ACK, "{}")).id != request.id
        except ValueError:
            return True

    def post(self, request: Request) -> bool:
        """A request that came another way than by annotation. False while another one waits."""
        with self._lock:
            waiting = self.request()
            if waiting is not None and waiting.id != request.id:
                return False
            self._posted = request
            return True

    def watch_sigterm(self, grace_s: float = GRACE_S) -> None:
        """Take SIGTERM as a request. Call it in the main thread.

        `grace_s` is terminationGracePeriodSeconds of the pod less what its preStop hook takes. A handler that was
        installed before is still called. The process is not ended: leave the loop when `should_stop()` is True.
        """
        self._grace_s = grace_s
        before = signal.getsignal(signal.SIGTERM)

        def handle(number: int, frame: FrameType | None) -> None:
            if math.isnan(self._term_s):
                self._term_s = self._now_s()  # no lock: the handler may interrupt its holder
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, handle)

    def should_stop(self) -> bool:
        """Whether to leave the loop: SIGTERM came, and no checkpoint is due that can still be written."""
        return self.grace_left_s() < math.inf and not self.should_checkpoint()

    def grace_left_s(self) -> float:
        """Seconds until the process is killed; infinite while no SIGTERM came."""
        return math.inf if math.isnan(self._term_s) else max(self._term_s + self._grace_s - self._now_s(), 0.0)

    def acknowledge(self, step: int, path: str) -> bool:
        """Report a checkpoint that is complete and durable, whether or not it was requested.

        It answers the request that waits. True if the API server has it now; else it is tried again in later calls.
        """
        with self._lock:
            request, now_s = self.request(), self._now_s()
            if not math.isnan(self._asked_s):
                self._save_s, self._asked_s = now_s - self._asked_s, math.nan
            answers = request.id if request else self._ack.id if self._ack else ""
            self._answered.add(answers)
            self._step, self._step_at_s = int(step), now_s
            self._ack = Ack(answers, self._step, str(path), round(now_s, 3))
            self._unwritten.update({LAST_CHECKPOINT: f"{now_s:.3f}", **self._beat()})
            if request is not None:
                self._unwritten[ACK] = json.dumps(self._ack._asdict())
            self._write_metrics()
            return self._flush(at_once=True)

    def heartbeat(self, step: int, model_flops_s: float = math.nan) -> None:
        """Report progress, and the model FLOP/s of the pod's GPUs. Cheap: it is written once in `HEARTBEAT_S`."""
        with self._lock:
            now_s = self._now_s()
            self._step, self._step_at_s, self._flops = int(step), now_s, float(model_flops_s)
            if now_s - self._beat_s >= HEARTBEAT_S or now_s < self._beat_s:
                self._beat_s = now_s
                self._unwritten.update(self._beat())
                self._write_metrics()
                self._flush(at_once=True)

    def metrics(self) -> str:
        """Acknowledgement and heartbeat in the text format of Prometheus."""
        with self._lock:
            return metrics_text(self._ack, self._step, self._step_at_s, self._pod.namespace, self._pod.name)

    def _beat(self) -> dict[str, str]:
        return {HEARTBEAT: f"{self._step_at_s:.3f}", **({MODEL_FLOPS: f"{self._flops:g}"} if self._flops > 0 else {})}

    def _flush(self, at_once: bool = False) -> bool:
        """Write what the API server does not have yet; True if nothing is left."""
        if self._unwritten and (at_once or not 0 <= self._now_s() - self._tried_s < RETRY_S):
            self._tried_s = self._now_s()
            problem = self._pod.annotate(self._unwritten)
            if problem:
                self._warn(f"cannot annotate the pod: {problem}; the metrics have it")
            else:
                self._unwritten.clear()
        return not self._unwritten

    def _write_metrics(self) -> None:
        if not self._metrics_file:
            return
        fresh = Path(f"{self._metrics_file}.{os.getpid()}")
        try:
            fresh.write_text(self.metrics(), encoding="utf-8")
            fresh.replace(self._metrics_file)  # a reader sees the old or the new file
        except OSError as error:
            self._warn(f"cannot write GPU_AUTOPILOT_METRICS_FILE: {error}")

    def _warn(self, text: str) -> None:
        """Log a problem once."""
        if text not in self._warned:
            self._warned.add(text)
            _LOG.warning("%s", text)

    def serve(self, port: int, token: str = "", host: str = "0.0.0.0") -> ThreadingHTTPServer:  # noqa: S104 - in a pod
        """Listen for requests over HTTP in a thread of its own; the server, whose `shutdown()` ends it.

        POST /checkpoint takes the JSON of the annotation: 202 it waits, 409 another one waits, 400 it is refused. It
        needs `Authorization: Bearer TOKEN` if there is a `token`. GET /metrics has the metrics. Raises OSError.
        """
        handler = type("Handler", (_Handler,), {"trainer": self, "token": token})
        server = ThreadingHTTPServer((host, port), handler)
        threading.Thread(target=server.serve_forever, name="checkpoint-hook", daemon=True).start()
        return server


class _Handler(BaseHTTPRequestHandler):
    trainer: Trainer
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
                request = read_request(self.rfile.read(int(length)).decode(errors="replace"))
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


@functools.cache
def trainer() -> Trainer:
    """The trainer of this process, made at the first use from the environment."""
    return Trainer()


def should_checkpoint() -> bool:
    """`Trainer.should_checkpoint` of this process."""
    return trainer().should_checkpoint()


def acknowledge(step: int, path: str) -> bool:
    """`Trainer.acknowledge` of this process."""
    return trainer().acknowledge(step, path)


def heartbeat(step: int, model_flops_s: float = math.nan) -> None:
    """`Trainer.heartbeat` of this process."""
    trainer().heartbeat(step, model_flops_s)


def watch_sigterm(grace_s: float = GRACE_S) -> None:
    """`Trainer.watch_sigterm` of this process."""
    trainer().watch_sigterm(grace_s)


def should_stop() -> bool:
    """`Trainer.should_stop` of this process."""
    return trainer().should_stop()
