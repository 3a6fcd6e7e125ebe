"""The stories of tests/kits/cluster_stories.py and decision_stories.py on the cluster of AUTOPILOT_E2E_KUBECONFIG."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from tests.kits.cluster_stories import STORIES, gang_under_kueue, refuse_without_queues
from tests.kits.deciding_service import DecidingService
from tests.kits.decision_stories import STORIES as DECISIONS
from tests.kits.decision_stories import tell
from tests.kits.kueue_install import KueueAbsentError, installed_kueue
from tests.kits.real_cluster import RealCluster

pytestmark = pytest.mark.e2e
VARIABLE = "AUTOPILOT_E2E_KUBECONFIG"

NOT_TOLD = {
    "kueue_down": "nobody stops Kueue on a cluster of others; tests/stories/test_kueue_down.py tells it",
    "api_server_down": "nobody stops an API server of others; tests/stories/test_api_server_down.py tells it",
}
"""Stories that cannot be told here, with the reason."""


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """That of the cluster."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"set {VARIABLE} to the kubeconfig of a cluster for tests (kind, k3d, staging)")
    return Path(named).expanduser()


@pytest.fixture(scope="session")
def kueue(kubeconfig: Path) -> Iterator[str]:
    """Kueue, installed where it is absent; why it is not there, "" where it is."""
    with ExitStack() as stack:
        try:
            stack.enter_context(installed_kueue(kubeconfig, uuid4().hex[:8]))
        except KueueAbsentError as error:
            yield str(error)
            return
        yield ""


@pytest.fixture
def cluster(kubeconfig: Path) -> Iterator[RealCluster]:
    """The cluster with a namespace and nodes of our own, which are removed afterwards."""
    found = RealCluster(kubeconfig)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("name", sorted(STORIES))
def test_story_on_a_real_cluster(kueue: str, cluster: RealCluster, name: str) -> None:
    """It goes as told, and nothing of it is left."""
    if kueue and name == gang_under_kueue.__name__:
        pytest.skip(kueue)
    STORIES[name](cluster)


@pytest.fixture(scope="module")
def service(kueue: str, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecidingService]:
    """`autopilot run` beside the cluster, for all stories in which it decides."""
    if kueue:
        pytest.skip(kueue)
    found = RealCluster(kubeconfig)
    try:
        refuse_without_queues(found)
        running = DecidingService(found, tmp_path_factory.mktemp("service"))
        try:
            yield running
        finally:
            running.close()
    finally:
        found.close()


@pytest.mark.parametrize("name", DECISIONS)
def test_the_service_decides_on_a_real_cluster(service: DecidingService, name: str) -> None:
    """It goes as told, by decisions of the service alone, and nothing of it is left."""
    tell(service, name)


@pytest.mark.parametrize("name", NOT_TOLD)
def test_story_that_a_real_cluster_is_spared(kubeconfig: Path, name: str) -> None:
    """Everybody on the cluster would suffer from it; it is told on our own API server."""
    pytest.skip(f"{kubeconfig}: {NOT_TOLD[name]}")
