"""A recommendation with a victim on every face: page, explanation, `kubectl get` and metrics, to the digit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apiserver.http.serve import Running
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.losses import LossesMemory
from autopilot.core.model.policy import Mode
from autopilot.core.model.units import format_clock, format_gpu_s
from autopilot.crds.documents import stamp
from autopilot.crds.names import path
from autopilot.metrics.exposition import Exposition
from autopilot.service.published import Published
from autopilot.service.settings import Role
from scripts.generate_crds import FOLDER, files
from tests.kits.core_world import AUTO, holds, waits
from tests.kits.http_kit import client, desk_over
from tests.kits.kubectl_kit import Kubectl
from tests.kits.recommendations_kit import Desk
from tests.kits.scraping import scrape

POLICY = replace(AUTO, modes=replace(AUTO.modes, preempt=Mode.APPROVE))
STEP_S, STEPS = 61.0, 8
"""Ticks, and how many: the wish must last 5 min before it is shown, and then stands for two ticks more."""


@pytest.fixture
def desk(kubectl: Kubectl, running: Running, kubeconfig: Path, tmp_path: Path) -> Iterator[Desk]:
    """A controller that asks before it preempts, beside a cluster with the shipped definitions."""
    kubectl.done("create", "namespace", "gpu-autopilot")
    for name in sorted(files()):
        kubectl.done("apply", "-f", str(FOLDER / name))
    kubectl.done("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    memory = ControllerMemory(fence=7, losses=LossesMemory(tenant_saves={"t0": (20.0, 15.0)}))  # most of its work saves
    found = Desk(running, kubeconfig, tmp_path, policy=POLICY, memory=memory)
    yield found
    found.close()


def test_every_face_shows_gain_cost_and_worst_case_alike(desk: Desk, kubectl: Kubectl, tmp_path: Path) -> None:
    """Minutes after it was first shown: the same words and numbers, since the time at which it was first shown."""
    long_ago: dict[str, Any] = {"submit_s": desk.now_s() - 7200.0, "start_s": desk.now_s() - 7200.0}
    low = holds(
        "low", 8, priority=1, gpus_per_member=4, checkpoint_on_request=True, checkpoint_write_s=10.0, **long_ago
    )
    for _ in range(STEPS):
        desk.tick(low, waits("high", 8, priority=9, gpus_per_member=4, submit_s=long_ago["submit_s"]))
        desk.ahead_s, desk.steady_s = desk.ahead_s + STEP_S, desk.steady_s + STEP_S
    latest = desk.publisher.latest
    assert latest is not None
    asks = client(desk_over(tmp_path, latest), Role.VIEWER)
    (card,) = (found := asks.get("/api/v1/recommendations").json())["recommendations"]
    (group,) = found["groups"]
    explained = asks.get(f"/api/v1/decisions/{card['id']}").json()
    status = desk.api.get(path("recommendations", desk.proposal)).document["status"]
    heads, row = kubectl.done("get", "recommendations", "-o", "wide").splitlines()

    assert card["victims"]
    assert card["gain"] == format_gpu_s(card["benefit_gpu_s"])
    worst = format_gpu_s(card["worst_cost_gpu_s"])
    assert card["cost"] == f"{format_gpu_s(card['cost_gpu_s'])}, worst case {worst}"
    for face in (group, explained, status):
        assert (face["gain"], face["cost"]) == (card["gain"], card["cost"])
    assert f"  gain {card['gain']}, cost {card['cost']}" in explained["lines"]
    assert (row[heads.index("GAIN") :].split("  ")[0], row[heads.index("COST") :].split("   ")[0]) == (
        card["gain"],
        card["cost"],
    )
    assert [status[f"{name}GPUSeconds"] for name in ("gain", "cost", "worstCost")] == [
        round(card[f"{name}_gpu_s"], 3) for name in ("benefit", "cost", "worst_cost")
    ]
    assert scraped(latest, card["id"]) == [card[f"{name}_gpu_s"] for name in ("benefit", "cost", "worst_cost")]

    assert card["age_s"] == pytest.approx(2 * STEP_S, abs=STEP_S / 2)
    assert (status["since"], status["why"]) == (stamp(card["since_s"]), card["why"])
    assert any(line.startswith(f"  recommended since {format_clock(card['since_s'])}") for line in explained["lines"])
    assert explained["lines"][0].endswith(f"at {format_clock(latest.decision.now_s)} (tick {latest.decision.tick})")


def scraped(latest: Published, name: str) -> list[Any]:
    """The figures of a recommendation in the metrics."""
    exposition = Exposition(None, "1")
    exposition.tick(latest.observation, latest.decision, latest.memory, latest.policy)
    found = scrape(exposition.render(latest.observation.now_s))
    return [found[f"recommendation_{figure}_gpu_seconds{{id={name}}}"] for figure in ("gain", "cost", "worst_cost")]
