"""On the playground, two notebooks of one team share a GPU, and it becomes a whole one again.

The scenario `notebooks` has two nodes of one GPU each. A training holds one GPU. On the other a notebook runs alone,
long enough to know what it uses. Then two notebooks of the same program wait: its node is turned, and both start there.
Once they have ended, and the shares are unused for a while, the node is turned back for work that needs it whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.records import Decision, Observation
from autopilot.explain.proposals import proposal_words
from autopilot.metering.prices import Prices, Region
from autopilot.metering.segments import metering_folder, open_store
from autopilot.metering.showback import showback
from autopilot.playground.agreement import disagreements
from autopilot.service.metered import ServiceMeter
from autopilot.settings import load_policy
from tests.kits.metering_kit import asked
from tests.kits.playground_acting import ActingRun
from tests.kits.playground_kit import person

PRICES = Prices(currency="EUR", region="a", regions={"a": Region(gpu_hour={"H100-80GB": 2.0})})
NODES = ("h100-000", "h100-001")


class Team:
    """The scenario, with the autopilot acting by itself through the API, and its bill."""

    def __init__(self, folder: Path) -> None:
        world = build_world(SimulateOptions(scenario="notebooks"))
        self.run = ActingRun(world, folder, load_policy("autopilot", world.policy), without=("studio",))
        self.client, self.said = person(self.run.stage), list[str]()
        self.journal = folder / "journal"
        self.meter = ServiceMeter(self.journal, 0.0, 1.0, 30.0)
        self.run.decisions.append(self._saw)

    def _saw(self, observation: Observation, decision: Decision) -> None:
        self.meter.take(observation)
        self.said += [proposal_words(each) for each in decision.plan.proposals if each.accepted]

    def until(self, minute: float) -> None:
        """Time passes; API and simulated cluster agree."""
        self.run.run_to(60.0 * minute)
        assert disagreements(self.run.stage.cluster, self.run.stage.projection, self.run.now_s) == []

    def on(self, name: str) -> list[str]:
        """The Jobs with running pods on a node."""
        found = (each for each in self.client.list("pods", "studio") if each["spec"].get("nodeName") == name)
        return sorted(
            str(each["metadata"]["labels"]["job-name"]) for each in found if each["status"]["phase"] == "Running"
        )

    def turned(self) -> dict[str, str]:
        """The offered GPUs of each node whose label says how they are shared."""
        found = {name: self.client.get("nodes", "", name) or {} for name in NODES}
        return {
            name: f"{each['metadata']['labels'][PLUGIN_CONFIG]}: {each['status']['allocatable']['nvidia.com/gpu']}"
            for name, each in found.items()
            if PLUGIN_CONFIG in each["metadata"]["labels"]
        }

    def saved_gpu_h(self) -> float:
        """What the team asked for and did not hold, because it shared."""
        self.meter.close()
        bills = showback(asked(open_store(metering_folder(self.journal)), PRICES), "tenant").bills
        return next(bill.saved_gpu_h for bill in bills if bill.name == "studio")


@pytest.mark.e2e  # 17 s of CPU
def test_two_notebooks_share_a_gpu_until_it_is_needed_whole(tmp_path: Path) -> None:
    """Alone, together on a node that is turned for them, and turned back; the bill has the GPU-hours saved."""
    team = Team(tmp_path)
    try:
        team.until(30)
        alone = next(name for name in NODES if team.on(name) == ["lab-1-0000"])
        assert (team.turned(), [each for each in team.said if "share" in each]) == ({}, [])
        team.until(50)
        assert team.on(alone) == ["lab-2-0000", "lab-2-0001"]
        assert team.turned() == {alone: "time-slicing-2: 2"}
        assert any(each.startswith("turn it to time-slicing-2") for each in team.said)
        assert sum("on shares (time-slicing-2)" in each for each in team.said) == 2
        team.until(80)
        assert team.turned() == {alone: "whole: 1"}
        assert team.on(alone) == ["evaluate-3-0000"]
        assert any(each.startswith("turn it back to whole GPUs") for each in team.said)
        assert team.saved_gpu_h() == pytest.approx(25 / 60, abs=0.05)
        assert team.run.bad == []
    finally:
        team.run.close()
