"""What docs/install.md says about removing the autopilot, on the server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autopilot.contract.annotations import PLACEMENT
from tests.kits.acting_kit import Acting

INSTALL = Path(__file__).parents[3] / "docs" / "install.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Acting]:
    """Three nodes, for kubectl."""
    found = Acting(tmp_path, tls=True)
    yield found
    found.close()


def labels(cluster: Acting, name: str) -> dict[str, str]:
    """The labels of a node."""
    found: dict[str, str] = cluster.ask("GET", f"/api/v1/nodes/{name}")["metadata"]["labels"]
    return found


def test_one_command_removes_the_labels_of_placements(cluster: Acting, require_tool: Callable[[str], str]) -> None:
    """Those of every gang on every node, and no other label."""
    before = {name: labels(cluster, name) for name in ("n1", "n2", "n3")}
    for name, gangs in {"n1": ("0123456789", "abcdef0123"), "n2": ("0123456789",)}.items():
        marks = {f"{PLACEMENT}{gang}": "true" for gang in gangs}
        cluster.ask("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": marks}})
    (command,) = (line.strip() for line in INSTALL.read_text("utf-8").splitlines() if "kubectl label node" in line)
    path = f"{Path(require_tool('kubectl')).parent}:{os.environ['PATH']}"
    home = str(cluster.kubeconfig.parent)
    environment = {"PATH": path, "HOME": home, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {name: labels(cluster, name) for name in before} == before
