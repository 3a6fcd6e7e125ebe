"""Forced failovers: never two actors at once, by the audit log of the server (`make soak` has more)."""

from __future__ import annotations

from math import inf

import pytest

from autopilot.service.leading.lease import Terms
from tests.kits.apiserver_kit import small_cluster
from tests.kits.failovers import BOUND_S, run
from tests.kits.lead_kit import Candidate, with_namespace
from tests.kits.tries import tries

FAILOVERS = tries(5, soak=50)


@pytest.mark.seeds(20)
def test_two_controllers_never_act_at_once(soak_seed: int) -> None:
    """Failovers of a 2 s lease, with pauses, clocks that differ and lost requests."""
    found = run(4 + soak_seed, FAILOVERS)
    assert (found.violation, found.failovers) == ("", FAILOVERS)
    assert found.writes > 20 * FAILOVERS
    assert found.longest_s <= BOUND_S + 0.2


def test_controllers_that_ask_nothing_are_found() -> None:
    """A planted defect: the audit log shows it."""
    assert "wrote with epoch" in run(seed=4, failovers=1, checks=False).violation


@pytest.mark.parametrize("offset_s", [0.0, 0.4, 0.8, 1.2])
def test_with_the_default_terms_another_one_leads_within_15_s(offset_s: float) -> None:
    """From the death of the leader, wherever the turns of the other one lie. The worst case is 13 s."""
    server, terms = with_namespace(small_cluster()), Terms()
    one, two = Candidate(server, "one", terms), Candidate(server, "two", terms)
    one.elector.step()
    server.timeline.run_for(offset_s)
    took_s = inf
    for turn in range(20):
        two.elector.step()
        if two.elector.fence() is not None:
            took_s = turn * terms.retry_s + offset_s
            break
        server.timeline.run_for(terms.retry_s)
    assert took_s <= 13.0
