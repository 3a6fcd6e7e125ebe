"""A cluster that listens on loopback with TLS, for clients that are not ours."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apiserver.cluster import cluster
from apiserver.http.serve import Running, serve
from apiserver.timeline import Timeline
from tests.kits.kubectl_kit import Kubectl


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A fresh cluster for each file of tests; its time is real time."""
    server = cluster(Timeline(datetime.now(UTC)), random.Random(1))
    with serve(server, tls=True) as listening:
        yield listening


@pytest.fixture(scope="module")
def kubeconfig(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its kubeconfig, as a file."""
    path = tmp_path_factory.mktemp("kube") / "config"
    path.write_text(running.kubeconfig())
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def kubectl(kubeconfig: Path, require_tool: Callable[[str], str]) -> Kubectl:
    """Runs kubectl with this kubeconfig; the test is skipped where there is none."""
    return Kubectl(require_tool("kubectl"), kubeconfig)
