"""A controller on virtual time whose recommendations are objects, and which people answer by annotation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from autopilot.app.runs.world import World
from autopilot.contract.annotations import APPROVE
from autopilot.controller import Wiring
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.crds.approvals import Approvals
from autopilot.crds.keeper import KIND, Keeper
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.playground.control_resources import MOST, add_control_resources
from autopilot.playground.live import wait_delivered
from autopilot.playground.stage import Stage
from autopilot.service.leading.inbox import ClusterInbox
from autopilot.service.published import Published, Publisher
from autopilot.service.record import Record
from autopilot.service.site import Site
from tests.kits.killing import Boundaries, MortalRun, make_mortal
from tests.kits.lead_kit import NAME
from tests.kits.playground_kit import person

RECOMMENDATIONS = "recommendations.gpu-autopilot.io"


class ApprovingRun(MortalRun):
    """The playground with its controller and the keeper of its Recommendations, both moved by the caller."""

    def __init__(self, world: World, folder: Path, policy: Policy, *, boundaries: Boundaries) -> None:
        self._folder = folder
        super().__init__(world, folder, policy, boundaries=boundaries)

    def _wiring(self, site: Site) -> Wiring:
        if self.fence == 1:
            add_control_resources(self.stage.server)
        api = ClusterApi(Access(Address(self.kubeconfig)))
        self._process.callback(make_mortal(api, self.boundaries))
        wiring = super()._wiring(site)
        memory = wiring.memory.load()
        inbox = ClusterInbox(api, NAME.namespace, lambda: "", lambda: "")
        problem = inbox.claim(self.fence, memory.people.last_sequence if memory is not None else -1)
        assert not problem, problem
        record = Record(self._folder / f"audit{self.fence}", self.stage.clock.now_s)
        self._process.callback(record.close)
        self._publisher = Publisher()
        approvals = Approvals(self._publisher, inbox, record, self.stage.clock.now_s, lambda: None)
        assert site.lists is not None
        self._listing = site.lists(KIND)
        self._listing.start()
        self._process.callback(self._listing.close)
        self._keeper = Keeper(
            self._listing, api, self._publisher, approvals, MOST, steady_s=lambda: self.stage.clock.virtual_s
        )
        return replace(wiring, inbox=inbox)

    def _decided(self, observation: Observation, decision: Decision) -> None:
        """Publish the tick, and let the keeper look at it."""
        super()._decided(observation, decision)
        now_s, memory = self.stage.clock.now_s(), self.controller.memory
        self._publisher.publish(Published(observation, decision, memory, self._policy, now_s, 0.0))
        wait_delivered(self.stage, self._listing)
        self._keeper.look()


def recommendations(stage: Stage) -> list[dict[str, Any]]:
    """All Recommendations."""
    return person(stage).list(RECOMMENDATIONS)


def approve(stage: Stage, name: str) -> None:
    """`kubectl annotate recommendation NAME gpu-autopilot.io/approve=yes`."""
    person(stage).patch(RECOMMENDATIONS, "", name, {"metadata": {"annotations": {APPROVE: "yes"}}})
