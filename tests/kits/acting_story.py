"""A small cluster in which the autopilot acts, for stories: what people do, what time passes, what is seen.

The cluster is a playground: Kueue's rules, a Kubernetes API over HTTP, virtual time. After each passage of time the API
is compared with the simulated world, and at the end the simulator's checkers are asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.contract.annotations import CHECK, CONTROLLER, MANAGE
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.core.model.snapshot import State
from autopilot.playground.agreement import disagreements
from autopilot.playground.steps import GATED_BY
from simulator.world.facts import Evicting
from tests.kits.approving import ApprovingRun
from tests.kits.gateway_kit import GatewayRun, MortalGatewayRun
from tests.kits.killing import Boundaries, MortalRun
from tests.kits.playground_acting import ActingRun, figures, policy_of
from tests.kits.playground_kit import job, person
from tests.kits.standing import USUAL, Delay, Late, Standing

Obj = dict[str, Any]
WORKLOADS, JOBS = "workloads.kueue.x-k8s.io", "jobs.batch"
CONTRACT = "gpu-autopilot.io/"
DURATION = "playground.gpu-autopilot.io/duration"
RESEARCH, PRODUCT = "research", "product"
SCENARIO = """
name: story
description: Three nodes of eight GPUs, two tenants, and no work of its own.
horizon: 12h
cluster:
  pools:
    - {{name: main, nodes: {nodes}, gpus_per_node: 8, gpu_model: H100-80GB}}
{pools}
  queues:
    - {{name: research, guarantee: {{H100-80GB: {research}}}}}
    - {{name: product, guarantee: {{H100-80GB: {product}}}}}
jobs:
  groups:
    - {{kind: train, count: 1, tenants: [research], gpus: [1], duration: 1m, from: 11h, to: 11h}}
    - {{kind: train, count: 1, tenants: [product], gpus: [1], duration: 1m, from: 11h, to: 11h}}
{groups}
{services}
{faults}
physics: real
telemetry: full
"""


class Story:
    """The cluster and the controller that acts in it."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        pools: str = "",
        groups: str = "",
        faults: str = "",
        services: str = "",
        policy: Policy | None = None,
        approves: bool = False,
        boundaries: Boundaries | None = None,
        without: Sequence[str] = (),
        standing: Standing = USUAL,
    ) -> None:
        """`pools`, `groups`, `faults` and `services`: further lines of the scenario. `approves`: Recommendations are
        objects. `boundaries`: where the controller dies. `without`: tenants without Kueue. `standing`: for how long
        the controller-manager stands still from the first stop on, which every `wait` waits out.
        """
        path = folder / "story.yaml"
        gpus = 8 * (nodes + len(pools.splitlines()))
        product = 8 if gpus > 8 else 0
        more = {
            "pools": pools,
            "groups": groups,
            "faults": faults,
            "services": services,
            "research": gpus - product,
            "product": product,
        }
        path.write_text(SCENARIO.format(nodes=nodes, **more), encoding="utf-8")
        world, policy = build_world(SimulateOptions(scenario=str(path))), policy or policy_of()
        self.run: ActingRun
        if approves:
            self.run = ApprovingRun(world, folder, policy, boundaries=boundaries or Boundaries())
        elif boundaries is not None:
            mortal = MortalGatewayRun if services else MortalRun
            self.run = mortal(world, folder, policy, boundaries=boundaries)
        elif services:
            self.run = GatewayRun(world, folder, policy, without=without)
        else:
            self.run = ActingRun(world, folder, policy, without=without)
        self.run.decisions.append(self._saw)
        self.client = person(self.run.stage)
        self.cluster = self.run.stage.cluster
        self.given_up = 0
        """Stops of work whose own start was too late: it has just begun to run."""
        self.cluster.observe(self)
        self._late(standing, boundaries)
        self._made: set[tuple[str, str]] = set()

    def _late(self, standing: Standing, boundaries: Boundaries | None) -> None:
        """The controller-manager stands still from the first stop on, or from a boundary on."""
        run, checked = self.run, self.run.stage.checked
        assert checked is not None
        self._delay = delay = Delay(standing, lambda for_s: manager.stand_still(run.now_s + for_s))
        if boundaries is not None and boundaries.stands:
            boundaries.reach, reach = delay.begin, lambda: None
        else:
            reach = delay.begin
        checked.manager = manager = Late(run.stage.engine.at, reach)
        self.cluster.linger_s = lambda *_: standing.ends_s

    def on_evicting(self, fact: Evicting) -> None:
        """Work was told to leave."""
        self.given_up += "/admit-" in fact.effect

    def _saw(self, _observation: Observation, decision: Decision) -> None:
        self._made |= {(each.action, each.id) for each in decision.plan.proposals if each.accepted}

    @property
    def actions(self) -> Counter[str]:
        """Actions whose proposals were carried out; the same one, decided again, counts once."""
        return Counter(action for action, _ in self._made)

    @property
    def took_over(self) -> bool:
        """Another process leads. It may see in the cluster that an effect is done, and then tells nobody."""
        return isinstance(self.run, MortalRun) and self.run.fence > 1

    # --- what people do -----------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        namespace: str = RESEARCH,
        gpus: int = 8,
        pods: int = 1,
        lasts: str = "1h",
        resource: str = "nvidia.com/gpu",
        **declared: str,
    ) -> None:
        """A Job of `pods` pods with `gpus` GPUs each, behind our gate as a template or policy of the cluster sets it.

        `declared`: its workload contract, with _ for -. `resource`: what its pods ask for.
        """
        notes = {CONTRACT + key.replace("_", "-"): value for key, value in declared.items()} | {GATED_BY: CONTROLLER}
        made = job(name, namespace, gpus, pods, resource, annotations={DURATION: lasts, **notes})
        self.client.create(JOBS, made)

    def leave(self, name: str, *, namespace: str = RESEARCH, gpus: int = 8, pods: int = 1, lasts: str = "1h") -> None:
        """A suspended Job in no queue, which its owner leaves to the autopilot."""
        labels, notes = {MANAGE: "true"}, {DURATION: lasts}
        made = job(name, namespace=namespace, gpus=gpus, pods=pods, annotations=notes, labels=labels)
        self.client.create(JOBS, made | {"spec": made["spec"] | {"suspend": True}})

    def delete(self, name: str, namespace: str = RESEARCH) -> None:
        """A person deletes a Job."""
        self.client.delete(JOBS, namespace, name, {"propagationPolicy": "Background"})

    def lose(self, node: str) -> None:
        """A node goes down now."""
        row = self.run.stage.projection.nodes.row[node]

        def fail(now_s: float) -> None:
            self.cluster.fail_node(row, now_s)

        self.run.stage.engine.at(self.run.now_s, fail)

    def wait(self, for_s: float) -> None:
        """Time passes; API and world agree afterwards. What the controller-manager delays is waited for."""
        while for_s > 0:
            self.run.run_to(self.run.now_s + for_s)
            for_s = self._delay.take_s()
        assert disagreements(self.cluster, self.run.stage.projection, self.run.now_s) == []

    def pass_by(self, for_s: float) -> None:
        """Time passes, and the controller does not look."""
        self.run.stage.clock.run_to(self.run.now_s + for_s)

    # --- what is seen -------------------------------------------------------------------------

    def row(self, name: str, namespace: str = RESEARCH) -> int:
        """The job of the world behind a Job."""
        return self.cluster.jobs.id.index(f"{namespace}/{name}")

    def state(self, name: str, namespace: str = RESEARCH) -> State:
        """Of the work behind a Job."""
        return State(self.cluster.state[self.row(name, namespace)])

    def pods(self, name: str, namespace: str = RESEARCH) -> list[Obj]:
        """The pods of a Job."""
        found = self.client.list("pods", namespace)
        return [each for each in found if each["metadata"]["labels"].get("job-name") == name]

    def hosts(self, name: str, namespace: str = RESEARCH) -> list[str]:
        """The nodes of its pods, sorted."""
        return sorted({each["spec"].get("nodeName", "") for each in self.pods(name, namespace)})

    def workload(self, name: str, namespace: str = RESEARCH) -> Obj:
        """The Workload of a Job."""
        gang = self.run.stage.projection.gangs[self.row(name, namespace)]
        found = self.client.get(WORKLOADS, namespace, gang.workload)
        assert found is not None
        return found

    def says(self, name: str, namespace: str = RESEARCH) -> dict[str, str]:
        """Condition -> status/reason of its Workload."""
        rows = self.workload(name, namespace)["status"].get("conditions", ())
        return {each["type"]: f"{each['status']}/{each['reason']}" for each in rows}

    def check(self, name: str, namespace: str = RESEARCH) -> Obj:
        """Our check on its Workload."""
        rows = self.workload(name, namespace)["status"].get("admissionChecks", ())
        return next(each for each in rows if each["name"] == CHECK)

    def told(self, name: str, namespace: str = RESEARCH) -> list[str]:
        """Reasons of the Events of the autopilot on a Job or its Workload."""
        names = {name, self.run.stage.projection.gangs[self.row(name, namespace)].workload}
        return [
            each["reason"]
            for each in self.client.list("events", namespace)
            if each["involvedObject"]["name"] in names
            and each.get("reportingComponent", "").startswith("gpu-autopilot")
        ]

    def measured(self, node: str) -> set[str]:
        """The GPUs that the exporter of a node reports."""
        text = self.run.stage.exporters.text(node, self.run.now_s) or b""
        return set(re.findall(r'UUID="([^"]*)"', text.decode()))

    def lost_gpu_s(self, name: str, namespace: str = RESEARCH) -> float:
        """Work that its last stop lost, in GPU-seconds; NaN where it was never stopped."""
        return self.cluster.lost_gpu_s[self.row(name, namespace)]

    def close(self) -> None:
        """End; no invariant of the simulator was broken."""
        try:
            self.cluster.settle(self.run.now_s)
            assert figures(self.run.stage.simulation, self.run.now_s, cpu_s=0.0).violations == ()
        finally:
            self.run.close()


@dataclass
class Begin:
    """Begins stories, which are told in the same way."""

    folder: Path
    boundaries: Boundaries | None = None
    standing: Standing = USUAL
    begun: list[Story] = field(default_factory=list)

    def __call__(self, **more: Any) -> Story:
        """A story on a cluster of its own."""
        self.begun.append(Story(self.folder, boundaries=self.boundaries, standing=self.standing, **more))
        return self.begun[-1]
