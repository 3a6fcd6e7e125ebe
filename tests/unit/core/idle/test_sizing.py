"""Advice on the right size: the most that any window showed, with headroom, on what the GPU model offers."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.idle.sizing import right_size, watched
from autopilot.core.model.memory.idle import SizeRecord
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.kits.core_world import holds, snapshot
from tests.kits.idle_world import NOW_S, measured

GPU_MIB = 81_920.0


def notebook(sm_ratio: float, mib: float, **table: Any) -> ClusterSnapshot:
    """Eight GPUs, one of them in use."""
    used = {0: {"sm_active_ratio": sm_ratio, "fb_used_mib": mib, "power_w": 200.0}}
    rest = {row: {"fb_used_mib": 0.0} for row in range(1, 8)}
    return measured(snapshot("1x8", [holds("w", 8, start_s=0.0, gpus_per_member=8)]), used | rest, **table)


def test_a_notebook_on_eight_gpus_gets_a_small_instance() -> None:
    """0.2 GPUs and 15 GiB for seven days on eight GPUs: 2g.20gb, with headroom."""
    known: dict[str, SizeRecord] = {}
    for day, (sm_ratio, mib) in enumerate(((0.1, 15_000.0), (0.2, 9_000.0), (0.05, 100.0))):
        known = watched(known, notebook(sm_ratio, mib), NOW_S + day * 86_400.0)
    [record] = known.values()
    assert (record.since_s, record.gpus) == (NOW_S - 1800.0, 8.0)
    assert record.most_gpus == pytest.approx(0.2, abs=1e-3)
    assert record.most_mib == pytest.approx(15_000.0, abs=1.0)
    assert right_size(record, "A100-80GB", GPU_MIB) == "2g.20gb"


@pytest.mark.parametrize(
    ("gpus", "most_gpus", "most_mib", "model", "size"),
    [
        pytest.param(8.0, 0.3, 22_528.0, "A100-80GB", "3g.40gb", id="memory decides"),
        pytest.param(8.0, 2.9, 1000.0, "A100-80GB", "4 GPUs", id="several whole GPUs"),
        pytest.param(8.0, 0.1, 200_000.0, "A100-80GB", "4 GPUs", id="memory of several GPUs"),
        pytest.param(8.0, 0.1, 1000.0, "V100-32GB", "1 GPU", id="no MIG"),
        pytest.param(1.0, 0.9, 1000.0, "A100-80GB", "", id="nothing smaller would do"),
        pytest.param(0.2857, 0.05, 1000.0, "A100-80GB", "1g.10gb", id="an instance of a smaller one"),
        pytest.param(8.0, 0.1, 1000.0, "", "", id="unknown model"),
    ],
)
def test_what_would_do(gpus: float, most_gpus: float, most_mib: float, model: str, size: str) -> None:
    """A fourth more than the most that was used must fit."""
    memory_mib = GPU_MIB if model else 0.0
    assert right_size(SizeRecord(0.0, gpus, most_gpus, most_mib), model, memory_mib) == size


def test_use_ends_the_watch_and_a_blackout_does_not() -> None:
    """Above half of its GPUs it needs them; what is not measured is unknown."""
    known = watched({}, notebook(0.1, 1000.0), NOW_S)
    busy = measured(notebook(0.1, 1000.0), {row: {"sm_active_ratio": 0.6} for row in range(8)})
    assert not watched(known, busy, NOW_S + 300.0)
    dark = notebook(0.1, 1000.0, age_s=notebook(0.1, 0.0).telemetry.age_s + 90_000.0)
    assert watched(known, dark, NOW_S + 300.0) == known
    assert not watched({}, dark, NOW_S)


def test_another_width_starts_the_watch_anew() -> None:
    """What it used on eight GPUs says nothing about four."""
    known = watched({}, notebook(0.1, 1000.0), NOW_S)
    four = measured(snapshot("1x8", [holds("w", 4, start_s=0.0, gpus_per_member=4)]), {})
    [record] = watched(known, four, NOW_S + 9000.0).values()
    assert record.since_s == NOW_S + 7200.0
