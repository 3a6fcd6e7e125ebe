"""The shipped controller, collector and levers beside an API server where everything goes wrong.

100 steps, in `make soak` 20,000. Defects that are put back on purpose are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from actuators.kubernetes import writing
from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.controller import Wiring
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.model.records import Batch, Instruction, Outcome
from autopilot.core.model.snapshot import SLO_CLASS_NAMES
from autopilot.readiness.fence import fence_policy
from autopilot.service.leading.leadership import ClusterLeadership
from collectors.kubernetes.collector import KubernetesCollector
from tests.hostile import api_machine
from tests.hostile.api_machine import ApiHostile

STEPS = 100


@pytest.mark.seeds(200)
def test_nothing_unsafe_is_written(soak_seed: int) -> None:
    """Every write is judged by the objects of the server. Once it is quiet, what can run runs."""
    world = ApiHostile(8 + soak_seed)
    world.run(STEPS)
    assert world.watch.counts["other writes"] > STEPS // 10


def names_no_uid(patch: pytest.MonkeyPatch) -> None:
    """A patch does not say which object it is about."""

    def version_only(read: Mapping[str, Any]) -> dict[str, str]:
        return {"resourceVersion": read["metadata"]["resourceVersion"]}

    patch.setattr(writing, "_preconditions", version_only)


def is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """The policy of the cluster lets writes of every epoch pass."""

    def open_policy() -> list[dict[str, Any]]:
        policy, binding = fence_policy()
        policy["spec"]["validations"] = [{"expression": "true"}]
        return [policy, binding]

    patch.setattr(api_machine, "fence_policy", open_policy)


def states_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Writes state no epoch, and the policy of the cluster lets everything pass."""
    is_not_fenced(patch)
    patch.setattr(writing, "EPOCH", "example.com/other")


class SeesNoOptOut(KubernetesCollector):
    """A collector that does not read the opt-out."""

    def collect(self, now_s: float) -> Batch:
        batch = super().collect(now_s)
        if batch.work is None:
            return batch
        table = batch.work.workloads
        shown = replace(table, excluded=np.zeros_like(table.excluded))
        return replace(batch, work=replace(batch.work, workloads=shown))


def ignores_the_opt_out(patch: pytest.MonkeyPatch) -> None:
    """The opt-out is not read."""
    patch.setattr(api_machine, "KubernetesCollector", SeesNoOptOut)


class SeesNoProtection(KubernetesCollector):
    """A collector that shows all work as preemptible batch."""

    def collect(self, now_s: float) -> Batch:
        batch = super().collect(now_s)
        if batch.work is None:
            return batch
        table = batch.work.workloads
        classes = np.full_like(table.slo_class, SLO_CLASS_NAMES.index("batch"))
        shown = replace(table, preemptible=np.ones_like(table.preemptible), slo_class=classes)
        return replace(batch, work=replace(batch.work, workloads=shown))


def ignores_protection(patch: pytest.MonkeyPatch) -> None:
    """What an owner protects is not read."""
    patch.setattr(api_machine, "KubernetesCollector", SeesNoProtection)


def without(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A guard does not answer."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        rest = tuple(each for each in GUARDS if each[0] != name)
        patch.setattr(api_machine, "Wiring", partial(Wiring, guards=rest))

    plant.__name__ = f"without_{name}"
    return plant


class Deletes(KubernetesActuator):
    """An actuator that stops work by deleting its Job."""

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        found = self.objects.find(instruction.subject.kind.value, instruction.subject.uid)
        for each in found.objects if found is not None and instruction.kind == "evict" else ():
            if each.kind == "Job":
                self.api.delete(f"/apis/batch/v1/namespaces/{each.namespace}/jobs/{each.name}", {})
        return super().apply(instruction, now_s)


def deletes_work(patch: pytest.MonkeyPatch) -> None:
    """Work is stopped by a bare delete."""
    patch.setattr(ApiHostile, "actuator", Deletes)


class Forgetful(ClusterLeadership):
    """A leader that acts though its memory is not in the cluster."""

    def why_not(self, fence: int) -> str:
        return "" if self.still_leads(fence) else super().why_not(fence)


def forgets(patch: pytest.MonkeyPatch) -> None:
    """Effects leave before the next leader could know of them."""
    patch.setattr(api_machine, "ClusterLeadership", Forgetful)


PLANTS = [
    (names_no_uid, 0, "without the uid"),
    (states_no_epoch, 0, "leads"),
    (ignores_the_opt_out, 1, "opted out"),
    pytest.param(without("mode"), 3, "the mode of", marks=pytest.mark.soak),  # shows late
    (deletes_work, 0, "bare delete"),
    (without("budget"), 0, "stops within"),
    (ignores_protection, 5, "it was protected before"),
    (is_not_fenced, 0, "leads"),
    (forgets, 0, "not in the memory of the cluster"),
]
"""(defect, a seed that shows it, words of the violation)"""


@pytest.mark.parametrize(("plant", "seed", "words"), PLANTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shows as the violation that it is."""
    plant(monkeypatch)
    assert found(seed, words)


def found(seed: int, words: str) -> str:
    """The violation; "" where there is none."""
    try:
        ApiHostile(seed).run(STEPS)
    except AssertionError as error:
        return str(error) if any(word in str(error) for word in words.split("|")) else ""
    return ""
