"""A person approves with kubectl, and the action happens.

With `--mode approve` the autopilot keeps each proposal as a Recommendation and waits. The annotation
`gpu-autopilot.io/approve=yes` is the approval. The service takes it off, answers in the status of the object, and
carries the action out: here the gang of the recommendation starts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import requests

from autopilot.contract.annotations import APPROVE
from autopilot.core.model.modes import Mode
from autopilot.core.model.snapshot import State
from autopilot.crds.wiring import open_keeper
from autopilot.playground.control_resources import add_control_resources
from autopilot.playground.live import AtMost, capped_site, controller_site, go_live
from autopilot.playground.run import PlaygroundOptions, settings_of
from autopilot.service.state_folder import places
from autopilot.service.wiring import wire
from autopilot.settings import StaticPolicySource
from tests.kits.acting_story import Story
from tests.kits.approving import approve as annotate
from tests.kits.approving import recommendations
from tests.kits.playground_acting import policy_of
from tests.kits.playground_kit import stage_of

LONGEST_S = 120.0
"""Longest wall time until something is seen."""


def test_an_approval_by_annotation_starts_the_gang(tmp_path: Path) -> None:
    """`kubectl annotate recommendation NAME gpu-autopilot.io/approve=yes`, as README says."""
    start_by(tmp_path, approve)


def test_an_owner_approves_on_the_namespace(tmp_path: Path) -> None:
    """`kubectl annotate namespace NAME gpu-autopilot.io/approve=yes`, where the operator lets that count."""
    start_by(tmp_path, approve_namespaces, approve_on_work=True)


def start_by(tmp_path: Path, ask: Callable[[str], None], *, approve_on_work: bool = False) -> None:
    """Wait until work starts in a playground with `--mode approve`; `ask`, called with its address, approves it."""
    stage = stage_of(speed=20.0, token="secret", acts=True)
    add_control_resources(stage.server)
    options = PlaygroundOptions(mode=Mode.APPROVE, state=tmp_path / "state", listen="127.0.0.1:0")
    config = tmp_path / "config"
    with go_live(stage, tls=False) as live:
        config.write_text(live.api.kubeconfig("secret"), encoding="utf-8")
        settings = settings_of(options, live, config)
        site = capped_site(controller_site(live, config, approve_on_work=approve_on_work), options.mode)
        service = wire(settings, places(settings.state, site.run), site)
        keeper = open_keeper(service)
        loop = threading.Thread(target=service.loop.run)

        def started() -> bool:
            ask(live.api.url)
            return bool(stage.cluster.holding)

        loop.start()
        try:
            seen(started)
        finally:
            service.loop.stop()
            loop.join()
            if keeper is not None:
                keeper.close()
            service.close()


def test_an_approval_is_carried_out_once(begin: Callable[..., Story]) -> None:
    """The gang waits for the person. Afterwards the object says that it was approved, and the annotation is gone."""
    policy = AtMost(StaticPolicySource(policy_of()), Mode.APPROVE).current()
    story = begin(policy=policy, approves=True)
    story.create("gang", pods=2)
    story.wait(120.0)
    assert story.state("gang") == State.PENDING
    (shown,) = recommendations(story.run.stage)
    assert shown["status"]["state"] == "NeedsApproval"
    annotate(story.run.stage, shown["metadata"]["name"])
    story.wait(120.0)
    assert story.state("gang") in {State.STARTING, State.RUNNING}
    (answered,) = [each for each in recommendations(story.run.stage) if each["spec"] == shown["spec"]]
    assert answered["status"]["decision"]["verdict"] == "Approved"
    assert APPROVE not in answered["metadata"].get("annotations", {})


def approve(url: str) -> None:
    """Approve what waits now with the request that kubectl sends; at the next tick it may be another recommendation."""
    path = f"{url}/apis/gpu-autopilot.io/v1alpha1/recommendations"
    headers = {"Authorization": "Bearer secret"}
    found = requests.get(path, headers=headers, timeout=10).json()["items"]
    waiting = [each["metadata"]["name"] for each in found if each.get("status", {}).get("state") == "NeedsApproval"]
    for name in waiting[:1]:
        answer = requests.patch(
            f"{path}/{name}?fieldManager=kubectl-annotate",
            json={"metadata": {"annotations": {APPROVE: "yes"}}},
            headers={**headers, "Content-Type": "application/merge-patch+json"},
            timeout=10,
        )
        assert answer.status_code in {200, 404}


def approve_namespaces(url: str) -> None:
    """Approve all work of each tenant, as `kubectl annotate namespace` does."""
    for name in ("assistants", "language", "vision"):
        answer = requests.patch(
            f"{url}/api/v1/namespaces/{name}?fieldManager=kubectl-annotate",
            json={"metadata": {"annotations": {APPROVE: "yes"}}},
            headers={"Authorization": "Bearer secret", "Content-Type": "application/merge-patch+json"},
            timeout=10,
        )
        assert answer.status_code == 200, answer.text


def seen(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + LONGEST_S
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.2)
