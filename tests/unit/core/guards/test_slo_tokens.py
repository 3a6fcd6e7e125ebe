"""The guard `slo` where services promise the times of tokens, and prefill and decode run in pools of their own."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.objects import ServingRole
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import ServiceTable, make
from tests.kits.core_world import holds, waits
from tests.unit.core.capabilities.test_new_guards import Planted, answer, layout, scene


@pytest.mark.parametrize(
    ("role", "ttft_s", "itl_s", "code", "value", "named"),
    [
        (ServingRole.WHOLE, 1.0, 0.01, Code.SLO_BURNING, 2.0, "first token"),
        (ServingRole.PREFILL, 1.0, 0.01, Code.SLO_BURNING, 2.0, "first token"),
        (ServingRole.DECODE, 1.0, 0.01, Code.OK, 0.2, "between two tokens"),
        (ServingRole.WHOLE, 0.1, 0.2, Code.SLO_BURNING, 4.0, "between two tokens"),
        (ServingRole.PREFILL, 0.1, 0.2, Code.OK, 0.2, "first token"),
        (ServingRole.DECODE, 0.1, 0.2, Code.SLO_BURNING, 4.0, "between two tokens"),
        (ServingRole.WHOLE, 0.1, np.nan, Code.SLO_BURNING, np.inf, "between two tokens"),
        (ServingRole.PREFILL, 0.1, np.nan, Code.OK, 0.2, "first token"),
        (ServingRole.PREFILL, np.nan, 0.01, Code.SLO_BURNING, np.inf, "first token"),
        (ServingRole.DECODE, np.nan, 0.01, Code.OK, 0.2, "between two tokens"),
    ],
)
def test_objectives_of_tokens_keep_the_replicas_that_answer_for_them(
    role: ServingRole, ttft_s: float, itl_s: float, code: Code, value: float, named: str
) -> None:
    """Each is asked of the pools whose role it is, and counts as missed where it is not measured."""
    table: ServiceTable = make(
        ServiceTable,
        id=["chat"],
        uid=["chat"],
        objective_s=[np.nan],
        role=[role],
        age_s=[5.0],
        ttft_objective_s=[0.5],
        ttft_p99_s=[ttft_s],
        itl_objective_s=[0.05],
        itl_p99_s=[itl_s],
    )
    observation = scene(holds("v", 8, service=0), waits("w", 8), services=table)
    verdict = answer(Planted("w", {"v": ("evict", None)}, layout(*range(8))), observation, "slo")
    assert verdict.code == code
    assert verdict.value == pytest.approx(value)
    assert named in verdict.unit


@pytest.mark.parametrize(("part_of", "code"), [(0, Code.SLO_BURNING), (-1, Code.OK)])
def test_a_gang_is_kept_by_a_late_pool_that_has_its_pods(part_of: int, code: Code) -> None:
    """The set of the gang promises nothing itself; a pool elsewhere keeps nothing."""
    table: ServiceTable = make(
        ServiceTable,
        id=["dyn", "dyn~decode"],
        uid=["dyn", "dyn~decode"],
        objective_s=[np.nan] * 2,
        role=[ServingRole.WHOLE, ServingRole.DECODE],
        age_s=[np.inf, 5.0],
        itl_objective_s=[np.nan, 0.05],
        itl_p99_s=[np.nan, 0.2],
        part_of=[-1, part_of],
    )
    observation = scene(holds("v", 8, service=0), waits("w", 8), services=table)
    assert answer(Planted("w", {"v": ("evict", None)}, layout(*range(8))), observation, "slo").code == code
