"""What the checkpoint helper costs a step of a training loop, beside API servers that do not help.

A loop calls `heartbeat`, `should_checkpoint` and `should_stop` once a step, and acknowledges a checkpoint every 1,000
steps. A step takes 0.1 s of the time that the helper sees, so that it looks at the file of annotations in every tenth
step and writes a heartbeat in every 600th, as in a real run. The API server does not listen, accepts and stays silent,
or answers each request after 0.3 s. The goal is 20 us in the 99th percentile, beside each of them.

    python -m benchmarks checkpoint_step [--quick] [--steps 100000] [--json OUT]
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from apiserver.http.serve import self_signed
from autopilot.checkpoint import Trainer
from benchmarks.kit import ended, judged, options

SERVERS = ("silent", "refusing", "slow")
"""One accepts and never answers, one does not listen, one answers each request after `SLOW_S`."""
SLOW_S = 0.3
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
STEP_S = 0.1
SAVE_STEPS = 1000
GOAL_US = 20.0


class Clock:
    """A time that is set."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.at_s


@contextlib.contextmanager
def trainer_beside(server: str, folder: Path, clock: Clock) -> Iterator[Trainer]:
    """The helper in a pod with one of `SERVERS`; its account and its annotations are in that folder."""
    self_signed(folder, "127.0.0.1")
    (folder / "ca.crt").write_bytes((folder / "cert.pem").read_bytes())
    (folder / "token").write_text("secret", encoding="utf-8")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if server != "refusing":
            listener.listen(16)
        if server == "slow":
            threading.Thread(target=_answer_late, args=(listener, folder), daemon=True).start()
        settings = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(listener.getsockname()[1]),
            "GPU_AUTOPILOT_ACCOUNT_FOLDER": str(folder),
            "GPU_AUTOPILOT_ANNOTATIONS": str(folder / "annotations"),
            "POD_NAMESPACE": "team",
            "POD_NAME": "pod",
            "POD_UID": "uid",
        }
        job = Trainer(settings, clock)
        try:
            yield job
        finally:
            job._writer._queue.clear()  # noqa: SLF001 - nothing is tried again after this
            listener.close()


def _answer_late(listener: socket.socket, folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
            connection.recv(65536)
            time.sleep(SLOW_S)
            connection.sendall(ANSWER)


def costs_us(server: str, steps: int) -> list[float]:
    """The calls of each step beside a server, in us."""
    clock, found = Clock(), []
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "annotations").write_text('other="1"', encoding="utf-8")
        with trainer_beside(server, Path(made), clock) as job:
            for step in range(steps):
                clock.at_s += STEP_S
                began_s = time.perf_counter()
                job.heartbeat(step)
                job.should_checkpoint()
                job.should_stop()
                found.append((time.perf_counter() - began_s) * 1e6)
                if step % SAVE_STEPS == SAVE_STEPS - 1:
                    job.acknowledge(step, "/data")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a 99th percentile misses the goal."""
    given = options(__doc__, arguments, steps=100_000)
    steps = 10_000 if given.quick else given.steps
    rows, figures = [], {}
    for server in SERVERS:
        found = np.array(costs_us(server, steps))
        middle, high, most = (float(np.percentile(found, each)) for each in (50, 99, 100))
        figures[server] = {"p50_us": middle, "p99_us": high, "max_us": most}
        rows.append((server, f"{middle:.1f}", judged(high, GOAL_US, digits=1), f"{most:,.0f}"))
    return ended(given, ("API server", "p50, us", "p99, us", "max, us"), rows, {"steps": steps, **figures})


if __name__ == "__main__":
    raise SystemExit(main())
