"""What the metrics show of GPUs whose MIG geometry changes, or whose change went wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.snapshot import Recut
from tests.kits.core_world import decide, observe, snapshot, waits
from tests.kits.scraping import shown

NOW_S = 10_000.0


def test_changing_and_failed_geometries_are_shown_by_node() -> None:
    """Nodes without such GPUs have no series."""
    observation = observe(snapshot("2x8", recuts={3: Recut.CHANGING, 9: Recut.FAILED, 10: Recut.FAILED}), NOW_S)
    found = {name: value for name, value in shown(observation).items() if name.startswith("node_recut")}
    assert found == {
        "node_recut_gpus{node=node-0,state=changing}": 1.0,
        "node_recut_gpus{node=node-1,state=failed}": 2.0,
    }


def test_a_gpu_that_is_quarantined_in_silence_is_shown() -> None:
    """Its node reports a settled geometry: the change had no effect. One that the node calls failed counts once."""
    record = RecutRecord("pool", None, (), NOW_S - 9e3, NOW_S - 7e3, state="quarantined", reason="it had no effect")
    observation = observe(snapshot("1x8", recuts={3: Recut.FAILED}), NOW_S)
    step = decide(observation)
    memory = replace(
        step.memory,
        geometry=replace(
            step.memory.geometry, recuts={"GPU-2": record, "GPU-3": record, "GPU-4": replace(record, state="settled")}
        ),
    )
    found = shown(observation, replace(step, memory=memory))
    assert {name: value for name, value in found.items() if name.startswith("node_recut")} == {
        "node_recut_gpus{node=node-0,state=failed}": 1.0,
        "node_recut_gpus{node=node-0,state=quarantined}": 1.0,
    }


def test_a_gpu_that_takes_no_new_work_is_neither_free_nor_lost() -> None:
    """Its node reports a settled geometry, and what is free there is not offered to anybody."""
    small = [("1g.10gb", start) for start in range(7)]
    observation = observe(snapshot("1x8", [waits("w", 1, mig_profile=2)], cuts={0: small}), NOW_S)
    step = decide(observation)
    record = RecutRecord("pool", None, (), NOW_S - 9e3, NOW_S - 7e3, state="quarantined", reason="it had no effect")
    names = ("node_free_gpus{node=node-0,pool=pool}", "largest_gang_gpus{gpu_model=A100-80GB}")
    lost = "stranded_gpus{cause=mig_geometry,demand=pending,pool=pool}"
    usual = shown(observation, step)
    assert [usual[name] for name in names] == [7.0, 7.0]
    assert usual[lost] == pytest.approx(3 / 7)
    memory = replace(step.memory, geometry=replace(step.memory.geometry, recuts={"GPU-0": record, "GPU-5": record}))
    found = shown(observation, replace(step, memory=memory))
    assert [found[name] for name in names] == [6.0, 6.0]
    assert found[lost] == 0.0
