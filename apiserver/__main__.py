"""A cluster in memory on a socket, for a person or another process: `python -m apiserver --kubeconfig FILE`."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from apiserver.actors.kubelet import KubeletOptions
from apiserver.cluster import cluster
from apiserver.http.serve import serve
from apiserver.timeline import Timeline


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, also in the background of a shell with SIGINT ignored. The kubeconfig is
    written once the server listens.
    """
    parser = argparse.ArgumentParser(prog="python -m apiserver", description="a cluster in memory, until Ctrl-C")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="where to write the kubeconfig")
    parser.add_argument("--kueue", action="store_true", help="with Kueue")
    parser.add_argument("--no-kubelets", action="store_true", help="nodes have no kubelet: somebody else reports them")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    given = parser.parse_args(arguments)
    kubelets = KubeletOptions(served=lambda _node: False) if given.no_kubelets else None
    names = random.Random(1)  # noqa: S311 - of uids and suffixes
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = cluster(Timeline(datetime.now(UTC)), names, kueue=given.kueue, kubelets=kubelets)
    with serve(server, port=given.port, tls=True) as running:  # without TLS kubectl sends no token
        given.kubeconfig.touch(mode=0o600)
        given.kubeconfig.write_text(running.kubeconfig(), "utf-8")
        sys.stdout.write(f"listens on {running.url}; kubectl --kubeconfig {given.kubeconfig} get nodes\n")
        sys.stdout.flush()
        ended.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
