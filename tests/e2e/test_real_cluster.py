"""The stories of tests/kits/cluster_stories.py on the cluster that AUTOPILOT_E2E_KUBECONFIG names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.cluster_stories import STORIES
from tests.kits.real_cluster import RealCluster

pytestmark = pytest.mark.e2e
VARIABLE = "AUTOPILOT_E2E_KUBECONFIG"


@pytest.fixture
def cluster() -> Iterator[RealCluster]:
    """The cluster with a namespace and nodes of our own, which are removed afterwards."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"set {VARIABLE} to the kubeconfig of a cluster for tests (kind, k3d, staging)")
    found = RealCluster(Path(named).expanduser())
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("name", sorted(STORIES))
def test_story_on_a_real_cluster(cluster: RealCluster, name: str) -> None:
    """It goes as told, and nothing of it is left."""
    STORIES[name](cluster)
