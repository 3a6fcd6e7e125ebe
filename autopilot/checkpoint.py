"""Checkpoints on request, for training programs in a pod of a cluster managed by gpu-autopilot.

Copy this file into an image, under any name: it needs Python 3.9 and its standard library only (docs/checkpoints.md).
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import importlib
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
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

PREFIX = "gpu-autopilot.io/"
REQUEST = PREFIX + "checkpoint-request"  # JSON: id, deadline (seconds since 1970, or RFC 3339)
ACK = PREFIX + "checkpoint-ack"  # JSON: id, step, path, at (seconds since 1970)
HEARTBEAT, STEP, MODEL_FLOPS = PREFIX + "heartbeat", PREFIX + "step", PREFIX + "model-flops-s"  # time, number, FLOP/s
LAST_CHECKPOINT, PAUSED, BUSY = (PREFIX + each for each in ("last-checkpoint", "paused", "busy"))  # s; "true"; JSON
EXIT_STOPPED = 143  # 128 + SIGTERM: exit status of a program stopped before its end. 0 completes its Job
ANNOTATIONS_FILE, ACCOUNT_FOLDER = "/etc/podinfo/annotations", "/var/run/secrets/kubernetes.io/serviceaccount"
GRACE_S, LATE_S = 30.0, 600.0  # grace of a pod without its own; past its deadline by more, a request was given up
CHECK_S, HEARTBEAT_S = 1.0, 60.0  # least time between two looks at the file, and between two written heartbeats
RETRY_S, MOST_RETRY_S = 1.0, 30.0  # pause after a failed attempt to write; each next one is twice as long
TIMEOUT_S, MOST_BYTES = 5.0, 512 * 1024  # of a request, in its own thread; of 256 KiB of annotations, escaped

Vote = Callable[[bool], bool]  # called on every rank: whether a flag is True on any of them


class Request(NamedTuple):
    """A request to write a checkpoint. `deadline_s`: seconds since 1970; infinite if none was stated."""

    id: str
    deadline_s: float = math.inf


class Ack(NamedTuple):
    """A complete checkpoint. `id` is the newest request answered by it or an earlier one, "" for none."""

    id: str
    step: int
    path: str
    at: float  # seconds since 1970; the names are those of the annotation


def read_annotations(text: str) -> dict[str, str]:
    """Annotations of the downward API: lines of `key="value"`, the value as Go's %q writes it. Others are left out."""
    found = {}
    for key, equals, value in (line.partition('="') for line in text.split("\n")):
        if equals:
            with contextlib.suppress(ValueError, SyntaxError):
                found[key] = str(ast.literal_eval(f'"{value}'))  # Python has the escapes of Go
    return found


def read_request(text: str) -> Request:
    """A request from its JSON. Raises ValueError naming the problem."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    name = document.get("id") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError('it has no "id", a text')
    deadline = document.get("deadline")
    try:
        if isinstance(deadline, str):
            deadline = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", deadline)).timestamp()  # Z: from Python 3.11
        deadline_s = math.inf if deadline is None else float(deadline)
    except (TypeError, ValueError, OverflowError, OSError):
        deadline_s = math.nan
    if math.isnan(deadline_s):
        raise ValueError(f'"deadline" is {deadline!r}; write seconds since 1970 or an RFC 3339 time')
    return Request(name, deadline_s)


class AnnotationsFile:
    """The annotations of the own pod. While the file is absent or unreadable, the last read values count."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, str] = {}
        self._seen: object = None

    def refresh(self) -> bool:
        """Read the file if it was replaced; returns True if so."""
        with contextlib.suppress(OSError):
            state = os.stat(self.path)  # noqa: PTH116 - Path.stat takes three times as long
            seen = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
            if seen != self._seen:
                text = Path(self.path).read_bytes()[:MOST_BYTES].decode(errors="replace")
                # a volume may also show one annotation alone: then the file holds its value as it is
                self.values = {REQUEST: text} if text.lstrip().startswith("{") else read_annotations(text)
                self._seen = seen
                return True
        return False


class OwnPod:
    """The own pod on the API server, patched with the token of its service account."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._account = Path(environment.get("GPU_AUTOPILOT_ACCOUNT_FOLDER", ACCOUNT_FOLDER))
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        self.server = f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""
        self.namespace = environment.get("POD_NAMESPACE", "") or self._of_account("namespace")
        self.name, self._uid = environment.get("POD_NAME", ""), environment.get("POD_UID", "")

    def _of_account(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self._account / name).read_text(encoding="utf-8").strip()
        return ""

    def annotate(self, values: Mapping[str, str]) -> str:
        """Write annotations, past any proxy, on condition of the same pod (by uid); the problem, or ""."""
        token = self._of_account("token")  # read anew: it is renewed
        needed = {"KUBERNETES_SERVICE_HOST": self.server, "POD_NAMESPACE": self.namespace, "POD_NAME": self.name}
        needed |= {"POD_UID": self._uid, f"{self._account}/token": token}
        if not all(needed.values()):
            return f"the pod does not have {', '.join(name for name, value in needed.items() if not value)}"
        path = f"/api/v1/namespaces/{quote(self.namespace)}/pods/{quote(self.name)}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is always https
            f"{self.server}{path}?fieldManager=gpu-autopilot-trainer",
            data=json.dumps({"metadata": {"uid": self._uid, "annotations": dict(values)}}).encode(),
            method="PATCH",
            headers={"Content-Type": "application/merge-patch+json", "Authorization": f"Bearer {token}"},
        )
        try:
            https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=f"{self._account}/ca.crt"))
            with urllib.request.build_opener(https, urllib.request.ProxyHandler({})).open(request, timeout=TIMEOUT_S):
                return ""
        except urllib.error.HTTPError as error:
            with contextlib.suppress(OSError, HTTPException):  # its text may be cut off
                return f"the API server answered {error.code}: {error.read(2000).decode(errors='replace')}"
            return f"the API server answered {error.code}"
        except (OSError, ValueError, HTTPException) as error:
            return f"the API server did not answer: {error}"


class _Writer:
    """Sends annotations in a daemon thread. Its queue holds one value of each: a newer value replaces an older one."""

    def __init__(self, send: Callable[[Mapping[str, str]], bool]) -> None:
        self._send, self._changed = send, threading.Condition()
        self._queue: dict[str, str] = {}
        self._attempts, self._sending, self._at_once = 0, False, False
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)

    def put(self, values: Mapping[str, str], at_once: bool) -> None:
        """Queue values. `at_once`: the pause after a failed attempt ends."""
        with self._changed:
            self._queue.update(values)
            self._at_once |= at_once
            if self._thread.ident is None:
                with contextlib.suppress(RuntimeError):  # as many threads as the pod may have: with the next values
                    self._thread.start()
                    atexit.register(self.flush, TIMEOUT_S)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """True if the queue is empty after one more attempt, or after `timeout_s`."""
        with self._changed:
            enough, self._at_once = self._attempts + 1 + self._sending, True
            self._changed.notify_all()
            if self._thread.is_alive():  # it is not in a forked child
                self._changed.wait_for(lambda: not self._queue or self._attempts >= enough, timeout_s)
            return not self._queue

    def _run(self) -> None:
        pause_s = RETRY_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                values, self._sending, self._at_once = dict(self._queue), True, False
            done = self._send(values)
            with self._changed:
                self._sending, self._attempts = False, self._attempts + 1
                self._queue = {name: each for name, each in self._queue.items() if not done or values.get(name) != each}
                self._changed.notify_all()
                if not done:
                    self._changed.wait_for(lambda: self._at_once, pause_s)
            pause_s = RETRY_S if done else min(2 * pause_s, MOST_RETRY_S)


class Trainer:
    """The questions and reports of a training loop. One for each process; safe to use from several threads.

    `environment`: the settings of docs/checkpoints.md. `now_s`: seconds since 1970. No method raises because of the
    cluster, and none waits for it but `flush` and `acknowledge` with `wait_s`: a thread writes, and tries again.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._file = AnnotationsFile(environment.get("GPU_AUTOPILOT_ANNOTATIONS", ANNOTATIONS_FILE))
        self._pod, self._metrics_file = OwnPod(environment), environment.get("GPU_AUTOPILOT_METRICS_FILE", "")
        self._lock, self._writer = threading.RLock(), _Writer(self._send)
        self._requests: list[Request | None] = [None, None]  # by the HTTP hook, and by annotation
        self._answered, self._warned = set[str](), set[str]()  # ids of requests; texts
        self._ack: Ack | None = None
        self._saving: tuple[int, str, bool] | None = None  # step, request that it answers, whether SIGTERM had come
        self._checked_s, self._beat_s, self._busy = -math.inf, -math.inf, dict[str, float]()
        self._step: int | None = None
        self._step_at_s = self._term_s = self._flops = math.nan
        self._asked_s = self._save_s = math.nan  # since when a save is due, and what the last one took
        self._looks, self._stopped, self._last_saved = 0, False, False  # looks: calls since the newest report of a step
        self._any_rank: Vote = bool
        self.hold: Callable[[], object] = bool  # that of checkpoint_hook.Pause, where requests come with a token
        self._paused: bool | None = None  # None: it has no such requests
        self._before: Any = None  # the handler of SIGTERM replaced by ours
        # SIGTERM to a forked child waits until the handler is reset: Python would forget it
        hold = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGTERM})
        take = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.register_at_fork(before=hold, after_in_parent=take, after_in_child=self._in_forked_child)

    def should_checkpoint(self) -> bool:
        """True if a checkpoint is due now: a request waits, or SIGTERM came and the grace suffices for a save."""
        self.hold()
        self._looks += 1
        due = self._on_any_rank(self._due())
        if not due or math.isnan(self._asked_s):
            self._asked_s = self._now_s() if due else math.nan
        return due

    def _due(self) -> bool:
        with self._lock:
            due, left_s = self.request() is not None, self.grace_left_s()
            if left_s < math.inf:
                is_new = self._ack is None or self._ack.step != self._step or self._looks > (self._beat_s > 0)
                due = (due or (is_new and not self._last_saved)) and not self._save_s > left_s
            return due and self._saving is None

    def _on_any_rank(self, flag: bool) -> bool:
        """The same on all ranks: True if `flag` is True on one of them, and no asynchronous save is under way."""
        return self._any_rank(flag) and not self._any_rank(self._saving is not None)

    def request(self) -> Request | None:
        """The request waiting for an acknowledgement; None if there is none."""
        with self._lock:
            now_s = self._now_s()
            if not 0 <= now_s - self._checked_s < CHECK_S:
                self._checked_s = now_s
                if self._file.refresh():
                    self._requests[1], answered = self._read(REQUEST), self._read(ACK)
                    self._answered |= {answered.id} if answered else set()  # before this container was started again
            asked = (each for each in self._requests if each is not None and each.deadline_s + LATE_S >= now_s)
            return next((each for each in asked if each.id not in self._answered), None)

    def _read(self, annotation: str) -> Request | None:
        text = self._file.values.get(annotation, "")
        try:
            return read_request(text) if text else None
        except ValueError as error:
            self._warn(f"the annotation {annotation} is ignored: {error}")
            return None

    def post(self, request: Request) -> bool:
        """A request received in another way than by annotation. False while another one waits."""
        with self._lock:
            taken = getattr(self.request(), "id", request.id) == request.id
            self._requests[0] = request if taken else self._requests[0]
            return taken

    def watch_sigterm(self, grace_s: float = GRACE_S, any_rank: Vote = bool) -> None:
        """Take SIGTERM as a request, in the main thread. An earlier handler is still called.

        `grace_s`: terminationGracePeriodSeconds of the pod less its preStop hook. The process is not ended: leave the
        loop once `should_stop()` is True. With `any_rank` all ranks save, and stop, at the same step.
        """
        self._grace_s, self._any_rank = grace_s, any_rank
        if signal.getsignal(signal.SIGTERM) != self._handle:
            self._before = signal.signal(signal.SIGTERM, self._handle)
        with contextlib.suppress(OSError):
            if self._pod.server and Path("/proc/1/comm").read_text().strip() in {"sh", "bash", "dash", "ash"}:
                self._warn("process 1 is a shell, which keeps SIGTERM to itself: let it start the program with `exec`")

    def _handle(self, number: int, frame: object) -> None:
        if math.isnan(self._term_s):
            self._term_s = self._now_s()  # no lock: the handler may interrupt its holder
        if callable(self._before):
            self._before(number, frame)

    def _unwatch(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def _in_forked_child(self) -> None:
        self._unwatch()  # a child ends at SIGTERM, as its parent did before
        self._lock, self._writer, self._term_s = threading.RLock(), _Writer(self._send), math.nan
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    @contextlib.contextmanager
    def stoppable(self, steps: int | None = None, grace_s: float = GRACE_S, any_rank: Vote = bool) -> Iterator[Trainer]:
        """`watch_sigterm` inside, and SystemExit(EXIT_STOPPED) at the end if a stop came before step `steps` - 1.

        Without `steps` every stop counts. Exceptions pass, and so does an exit status other than 0.
        """
        self.watch_sigterm(grace_s, any_rank)
        try:
            yield self
        except SystemExit as ended:
            if ended.code or not self._cut_short(steps):
                raise
        finally:
            self._unwatch()
        if self._cut_short(steps):
            raise SystemExit(EXIT_STOPPED)

    def _cut_short(self, steps: int | None) -> bool:
        reached = steps is not None and self._step is not None and self._step >= steps - 1
        return not reached and (self._stopped or not math.isnan(self._term_s))

    def should_stop(self) -> bool:
        """True if the loop should end: SIGTERM came, and no checkpoint is under way, or due and still possible."""
        found = self._on_any_rank(self.grace_left_s() < math.inf and not self._due())
        self._stopped |= found
        return found

    def grace_left_s(self) -> float:
        """Seconds until the process is killed; infinite while no SIGTERM came."""
        return math.inf if math.isnan(self._term_s) else max(self._term_s + self._grace_s - self._now_s(), 0.0)

    def save_started(self, step: int) -> None:
        """Report the begin of an asynchronous save, the answer to the waiting request. Until its end none is due."""
        with self._lock:
            self._saving = (int(step), getattr(self.request(), "id", ""), self.grace_left_s() < math.inf)

    def save_failed(self) -> None:
        """Report the end of the asynchronous save without a checkpoint: it is due again."""
        self._saving = None

    def acknowledge(self, step: int, path: str, wait_s: float = 0.0) -> bool:
        """Report a complete and durable checkpoint, requested or not; True if the report is written `wait_s` later."""
        with self._lock:
            waiting, now_s = self.request(), self._now_s()
            began, answers, last = self._saving or (step, waiting.id if waiting else "", self._last_saved)
            answers = "" if step < began else answers  # a save before the one under way
            self._saving, self._last_saved = (self._saving, self._last_saved) if step < began else (None, last)
            if self._step is None or step >= self._step:
                self._step, self._step_at_s = int(step), now_s
            if not math.isnan(self._asked_s):
                self._save_s, self._asked_s = now_s - self._asked_s, math.nan
            self._looks = 0
            self._answered.add(answers)
            self._ack = Ack(answers or (self._ack.id if self._ack else ""), int(step), str(path), round(now_s, 3))
            self._write_metrics()
            answer = {ACK: json.dumps(self._ack._asdict())} if answers else {}
            self._writer.put({LAST_CHECKPOINT: f"{now_s:.3f}", **self._beat(), **answer}, at_once=bool(answers))
        return wait_s > 0 and self.flush(wait_s)

    def heartbeat(self, step: int, model_flops_s: float = math.nan, **busy: float) -> None:
        """Report progress, and the model FLOP/s of the pod's GPUs. Cheap: it is written once in `HEARTBEAT_S`.

        `busy_s`: time of the step in which this rank computed, without waiting; `stage` of a pipeline, and `rank`.
        """
        with self._lock:
            now_s = self._now_s()
            self._step, self._step_at_s, self._flops, self._looks = int(step), now_s, float(model_flops_s), 0
            self._busy = busy
            if not 0 <= now_s - self._beat_s < HEARTBEAT_S:
                self._beat_s = now_s
                self._write_metrics()
                self._writer.put(self._beat(), at_once=False)
        self.hold()

    def report_paused(self, paused: bool) -> None:
        """Report that the program waits at a step boundary, or goes on; its heartbeat does not grow old meanwhile."""
        with self._lock:
            self._paused, self._step_at_s = paused, self._now_s()
            self._write_metrics()
            self._writer.put({PAUSED: str(paused).lower(), **(self._beat() if self._beat_s > 0 else {})}, at_once=False)

    def metrics(self) -> str:
        """Acknowledgement and heartbeat in the text format of Prometheus."""
        return str(_hook().metrics_text(self._ack, self._step, self._step_at_s, self._pod, self._paused))

    def flush(self, timeout_s: float = TIMEOUT_S) -> bool:
        """True if the API server has every report, after one more attempt or `timeout_s`. It is called at exit."""
        return self._writer.flush(timeout_s)

    def _beat(self) -> dict[str, str]:
        flops = {MODEL_FLOPS: f"{self._flops:g}"} if self._flops > 0 else {}
        busy = {BUSY: json.dumps(self._busy)} if self._busy else {}
        return {HEARTBEAT: f"{self._step_at_s:.3f}", STEP: f"{self._step}", **flops, **busy}

    def _send(self, values: Mapping[str, str]) -> bool:
        problem = self._pod.annotate(values)
        if " 403" in problem and STEP in values:  # a policy from before there were steps refuses them, and all beside
            problem = self._pod.annotate({name: each for name, each in values.items() if name not in (STEP, BUSY)})
        if problem:
            there = self._metrics_file and f"; {self._metrics_file} has it"
            self._warn(f"cannot annotate the pod: {problem}{there}")
        return not problem

    def _write_metrics(self) -> None:
        if self._metrics_file:
            try:
                _hook().replace(self._metrics_file, self.metrics())
            except (OSError, ImportError) as error:
                self._warn(f"cannot write GPU_AUTOPILOT_METRICS_FILE: {error}")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logging.getLogger("gpu_autopilot.checkpoint").warning("%s", text)

    def serve(self, port: int, token: str = "", host: str = "0.0.0.0") -> Any:  # noqa: S104 - in a pod
        """`checkpoint_hook.serve`: listen for requests over HTTP in a thread of its own. Raises OSError."""
        return _hook().serve(self, read_request, port, token, host)


def _hook() -> Any:  # the second file, from the folder or package of this one
    return importlib.import_module(f"{__package__}.checkpoint_hook" if __package__ else "checkpoint_hook")


@functools.cache
def trainer() -> Trainer:
    """The trainer of this process, made at the first use from the environment."""
    return Trainer()


def _of_process(method: str) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        return getattr(trainer(), method)(*args, **named)

    call.__doc__ = f"`Trainer.{method}` of this process. {getattr(Trainer, method).__doc__}"
    return call


should_checkpoint: Callable[..., bool] = _of_process("should_checkpoint")
should_stop: Callable[..., bool] = _of_process("should_stop")
acknowledge: Callable[..., bool] = _of_process("acknowledge")
heartbeat: Callable[..., None] = _of_process("heartbeat")
watch_sigterm: Callable[..., None] = _of_process("watch_sigterm")
stoppable: Callable[..., contextlib.AbstractContextManager[Trainer]] = _of_process("stoppable")
