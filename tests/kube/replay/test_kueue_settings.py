"""The configuration of Kueue is inferred from what its Workloads show: a recording made with one names that one."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.kueue.config import Config, WaitForPodsReady
from tests.kits.kueue_kit import SPACE, KueueCluster
from tests.kube.replay.kueue_settings import settings_of
from tests.kube.replay.recording import parse

STEP_S = 1.0


def recorded(settings: WaitForPodsReady, seconds: int, jobs: int) -> list[dict[str, Any]]:
    """Lists of Workloads, once a second. The first Job runs after 2 s, and loses its node after 6."""
    kueue = KueueCluster(Config(wait_for_pods_ready=settings))
    kueue.queue("a", 8)
    for number in range(jobs):
        kueue.job(f"j{number}", "a", 4)
    steps = []
    for number in range(round(seconds / STEP_S)):
        if jobs == 1 and number * STEP_S == 2:
            kueue.node("n1")
        if jobs == 1 and number * STEP_S == 6:
            kueue.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
            for pod in kueue.ask("GET", "/api/v1/namespaces/default/pods")["items"]:
                name = pod["metadata"]["name"]
                kueue.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})
        kueue.run(STEP_S)
        request = {"method": "GET", "path": f"{SPACE}/workloads"}
        body = kueue.ask("GET", f"{SPACE}/workloads")
        step = {"name": f"at {number}", "t": number * STEP_S, "request": request}
        steps.append(step | {"response": {"status": 200, "body": body}})
    return steps


@pytest.mark.parametrize(
    ("settings", "jobs"),
    [
        (WaitForPodsReady(timeout_s=7.0, backoff_base_s=3.0, backoff_limit=2), 2),
        (WaitForPodsReady(timeout_s=7.0, backoff_base_s=3.0, block_admission=True), 2),
        (WaitForPodsReady(recovery_timeout_s=9.0, backoff_base_s=2.0), 1),
    ],
)
def test_a_recording_names_the_settings_it_was_made_with(settings: WaitForPodsReady, jobs: int) -> None:
    """What it does not show has Kueue's defaults."""
    raw = {"topic": "99-made-up", "about": "", "notes": [], "steps": recorded(settings, 35, jobs)}
    assert settings_of(parse(raw)).wait_for_pods_ready == settings
