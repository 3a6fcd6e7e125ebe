"""What a move away from a slow member is worth."""

from __future__ import annotations

from math import nan

import pytest

from autopilot.core.stragglers.price import worth_gpu_s


@pytest.mark.parametrize(
    ("lasted_s", "remaining_s", "expected"),
    [(1800.0, nan, 900.0), (1800.0, 600.0, 300.0), (1800.0, 7200.0, 900.0), (1800.0, -5.0, 0.0), (-60.0, 600.0, 0.0)],
)
def test_it_is_worth_the_loss_of_as_long_again_while_the_gang_runs(
    lasted_s: float, remaining_s: float, expected: float
) -> None:
    """Half of 3600 GPU-seconds an hour with half of the confidence; never below 0."""
    assert worth_gpu_s(3600.0, 0.5, lasted_s, remaining_s) == expected
