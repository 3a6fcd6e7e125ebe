"""Counters that contradict each other, of one GPU and of those that the same service reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from autopilot.core.intake.usage.contradiction import contradicted
from autopilot.core.model.signal_table import SignalTable
from tests.kits.core_world import MODELS, holds, snapshot

SM, POWER = SIGNALS.index("sm_active_ratio"), SIGNALS.index("power_w")
LINKS = (SIGNALS.index("nvlink_bytes_s"), SIGNALS.index("pcie_bytes_s"))
DARK, LIT, ZERO, FAINT = (0.0, 500.0), (0.6, 500.0), (0.0, 122.0), (0.002, 122.0)
"""SM activity and watts of GPUs that work by their power alone, work, stand at 0, and do a little."""


def found(
    *gpus: tuple[float, float], nodes: int = 1, sources: tuple[int, ...] = (), copies: int | None = None
) -> list[bool]:
    """Which GPUs are contradicted; `copies`: the signal of a link that carries data."""
    each = len(gpus) // nodes
    plain = snapshot(
        f"{nodes}x{each}", [holds("a", len(gpus))], nodes={"gpu_model": [MODELS.index("H100-80GB")] * nodes}
    )
    table = np.zeros((len(SIGNALS), 2, len(gpus)), np.float32)
    for row, (sm, watts) in enumerate(gpus):
        table[SM, :, row], table[POWER, :, row] = sm, watts
    if copies is not None:
        table[copies] = 6e10
    samples, grade = np.full((2, len(gpus)), 10, np.int32), np.full(len(gpus), Quality.SM_ACTIVE, np.int8)
    telemetry = SignalTable(
        SIGNALS,
        (300.0, 1800.0),
        0.0,
        table,
        table,
        samples,
        np.zeros(len(gpus), np.float32),
        grade,
        ("x", "y") if sources else (),
        np.array(sources, np.int8),
    )
    return list(contradicted(replace(plain, telemetry=telemetry)).tolist())


@pytest.mark.parametrize(
    ("gpus", "more", "wrong"),
    [
        pytest.param((DARK, ZERO, ZERO, FAINT), {}, [True, True, True, False], id="what is not 0 was counted"),
        pytest.param((DARK, LIT, ZERO, ZERO), {}, [True, False, False, False], id="the counters of another GPU work"),
        pytest.param((DARK, DARK, LIT, ZERO), {}, [True, True, False, True], id="those of fewer GPUs work"),
        pytest.param((LIT, ZERO, ZERO, ZERO), {}, [False] * 4, id="nothing contradicts them"),
        pytest.param((DARK, DARK, ZERO, ZERO), {"nodes": 2}, [True] * 4, id="no counters of the fleet work"),
        pytest.param(
            (DARK, LIT, LIT, ZERO), {"nodes": 2}, [True, False, False, False], id="those of its own node work"
        ),
        pytest.param(
            (DARK, DARK, ZERO, ZERO),
            {"nodes": 2, "sources": (0, 0, 1, 1)},
            [True, True, False, False],
            id="of another source",
        ),
    ],
)
def test_zeros_are_believed_where_counters_of_the_same_service_work(
    gpus: tuple[tuple[float, float], ...], more: dict[str, int], wrong: list[bool]
) -> None:
    """On a node, and in a source."""
    assert found(*gpus, **more) == wrong  # type: ignore[arg-type]


@pytest.mark.parametrize("link", LINKS)
def test_copies_explain_power(link: int) -> None:
    """A GPU that only loads or saves draws power without SM activity."""
    assert found(DARK) == [True]
    assert found(DARK, copies=link) == [False]
