"""A loop that hangs is said, and ends its process; one that ticks, or was only stopped for a while, is left alone."""

from __future__ import annotations

import pytest

from autopilot.service.pulse import ENDS_S, FIRST_S, LEAST_S, SHOWN_S, Pulse


class Asked:
    """A pulse, and what it asked for."""

    def __init__(self, period_s: float = 5.0) -> None:
        self.stops, self.ends = 0, list[str]()
        self.pulse = Pulse(period_s, self.stop, self.ends.append)

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize(("period_s", "limit_s"), [(5.0, LEAST_S), (19.0, LEAST_S), (300.0, 900.0)])
def test_it_hangs_after_three_periods_and_a_minute_at_least(period_s: float, limit_s: float) -> None:
    """It says so once and asks the loop to end; after a while in which that can be read, the process ends."""
    asked = Asked(period_s)
    asked.pulse.beat(listed=True)
    asked.pulse.looked(limit_s - 0.5)
    assert (asked.pulse.problem, asked.stops) == ("", 0)
    asked.pulse.looked(1.0)
    assert f"no tick has ended for {limit_s:.0f} s" in asked.pulse.problem
    assert (asked.stops, asked.ends) == (1, [])
    asked.pulse.looked(SHOWN_S)
    assert (asked.stops, asked.ends) == (1, [asked.pulse.problem])


def test_the_first_lists_may_take_ten_minutes() -> None:
    """A tick that saw no complete list does not end that time; each tick begins it anew."""
    asked = Asked()
    for _ in range(3):
        asked.pulse.looked(FIRST_S - 1.0)
        asked.pulse.beat(listed=False)
    assert not asked.pulse.problem
    asked.pulse.looked(FIRST_S)
    assert asked.pulse.problem


def test_a_signal_ends_the_process_whatever_hangs() -> None:
    """Also before the loop counts as hanging, and once."""
    asked = Asked()
    asked.pulse.beat(listed=True)
    asked.pulse.ending()
    asked.pulse.looked(ENDS_S - 0.5)
    asked.pulse.ending()
    assert asked.ends == []
    asked.pulse.looked(1.0)
    assert "of the signal" in asked.ends[0]
