"""Times of tokens of a simulated service, by its role and its load."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.core.model.objects import ServingRole
from simulator.inference.deployments import requests_for
from simulator.inference.requests import Arrivals, ListedArrivals
from simulator.inference.serving import ServiceSim
from simulator.inference.serving_queue import RELATIVE_ERROR
from simulator.inference.serving_records import ServiceSpec
from simulator.inference.token_times import TokenFigures
from simulator.scenarios import load_scenario

WHOLE, PREFILL, DECODE = ServingRole
SPEED: dict[str, Any] = {"slots": 4, "prefill_tokens_per_s": 1000.0, "decode_tokens_per_s": 10.0}
PROMISED: dict[str, Any] = {"ttft_objective_s": 1.0, "itl_objective_s": 0.5}


def figures(requests: list[tuple[float, int, int]], to_s: float = 60.0, **spec: Any) -> TokenFigures:
    """What one replica shows after some requests: (arrival, input tokens, output tokens)."""
    t_s, given_tokens, made = (np.array(column) for column in zip(*requests, strict=True))
    arrivals = ListedArrivals(Arrivals(t_s.astype(np.float64), given_tokens, made))
    sim = ServiceSim(ServiceSpec(name="chat", **(SPEED | PROMISED | spec)), arrivals, replicas=1)
    sim.advance(to_s)
    return sim.tokens()


def test_a_request_alone_waits_for_its_prefill_and_stalls_nobody() -> None:
    """0.5 s of prefill and a first token of 0.1 s; ten further tokens of 0.1 s."""
    found = figures([(0.0, 500, 11)])
    assert (found.ttft_p99_s, found.itl_p99_s) == pytest.approx((0.6, 0.1), rel=RELATIVE_ERROR)
    assert (found.ttft_late_ratio, found.itl_late_ratio) == (0.0, 0.0)


def test_the_prefills_of_a_full_replica_stall_the_decodes_there() -> None:
    """Four slots, always full: each prefill of 0.9 s makes a token of the three others take 1 s."""
    found = figures([(0.0, 900, 51)] * 40)
    assert found.itl_p99_s == pytest.approx(1.0, rel=RELATIVE_ERROR)
    assert found.itl_late_ratio == pytest.approx(3 / 50)
    quiet = figures([(12.0 * number, 900, 51) for number in range(5)])
    assert quiet.itl_p99_s == pytest.approx(0.1, rel=RELATIVE_ERROR)
    assert quiet.itl_late_ratio == 0.0


def test_a_wait_for_a_slot_delays_the_first_token() -> None:
    """The fifth of five requests that come at once waits for the first one."""
    found = figures([(0.0, 500, 11)] * 5)
    assert found.ttft_p99_s == pytest.approx(1.6 + 0.6, rel=RELATIVE_ERROR)
    assert found.ttft_late_ratio == pytest.approx(1 / 5)


def test_each_pool_shows_its_own_tokens() -> None:
    """Prefill has no further token. Decode has the first one, and a request that waits there waits for its second."""
    asked = [(0.0, 500, 11)] * 5
    prefill = figures(asked, role=PREFILL, decode_tokens_per_s=math.inf)
    assert prefill.ttft_p99_s == pytest.approx(0.5 + 0.5, rel=RELATIVE_ERROR)
    assert math.isnan(prefill.itl_p99_s)
    decode = figures(asked, role=DECODE, prefill_tokens_per_s=math.inf)
    assert math.isnan(decode.ttft_p99_s)
    assert decode.itl_p99_s == pytest.approx(1.1 + 0.1, rel=RELATIVE_ERROR)
    assert decode.itl_late_ratio == pytest.approx(1 / 50)


def test_nothing_is_measured_where_nothing_is_promised_or_served() -> None:
    """Unknown, never zero."""
    nothing: dict[str, Any] = {"ttft_objective_s": None, "itl_objective_s": None}
    assert np.isnan(figures([(0.0, 500, 11)], **nothing)).all()
    assert np.isnan(figures([(0.0, 500, 11)], to_s=30.0)).all(), "no window is closed"
    assert np.isnan(figures([(90.0, 500, 11)])).all(), "no request is served"


REQUESTS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 3000), st.integers(0, 60)), min_size=1, max_size=40)


@settings(max_examples=40)
@given(REQUESTS.map(sorted), st.sampled_from(list(ServingRole)), st.lists(st.floats(0, 300), max_size=5).map(sorted))
def test_figures_do_not_depend_on_when_they_are_asked_for(
    requests: list[tuple[float, int, int]], role: ServingRole, cuts: list[float]
) -> None:
    """And no share leaves 0 to 1, whatever the load."""
    t_s, given_tokens, made = (np.array(column) for column in zip(*requests, strict=True))
    found = []
    for stops in (cuts, []):
        arrivals = ListedArrivals(Arrivals(t_s.astype(np.float64), given_tokens, made))
        sim = ServiceSim(ServiceSpec(name="chat", role=role, **(SPEED | PROMISED)), arrivals, replicas=1)
        for stop in (*stops, 300.0):
            sim.advance(stop)
        found.append(sim.tokens())
    np.testing.assert_array_equal(found[0], found[1])
    shares = np.array(found[0][2:])
    assert ((shares >= 0) & (shares <= 1) | np.isnan(shares)).all()


def test_both_pools_of_a_model_get_the_same_requests() -> None:
    """The decode pool of the shipped scenario names the other one."""
    scenario = load_scenario("pools")
    prefill, decode, _ = scenario.services
    assert (prefill.serving.role, decode.serving.role) == (PREFILL, DECODE)
    found = requests_for(scenario.services, horizon_s=600.0, seed=scenario.seed)
    one, other, _ = (source.upto(600.0) for source in found.sources())
    for mine, its in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert len(one.t_s)


@pytest.mark.parametrize(
    ("service", "changes", "message"),
    [
        (0, {"decode_tokens_per_s": 40}, r"services\[0\]\.decode_tokens_per_s: .*its role does not do this part"),
        (1, {"prefill_tokens_per_s": 40}, r"services\[1\]\.prefill_tokens_per_s: .*its role does not do this part"),
        (0, {"role": "whole"}, r"services\[0\]\.decode_tokens_per_s: is missing"),
        (0, {"role": "encode"}, r"services\[0\]\.role: 'encode'"),
        (0, {"ttft_objective": 0}, r"services\[0\]\.ttft_objective: 0"),
        (1, {"requests": "llama-prefil"}, r"services\[1\]\.requests: 'llama-prefil' .*llama-prefill"),
        (0, {"requests": "llama-decode"}, r"services\[0\]\.requests: 'llama-decode'.*earlier service"),
    ],
)
def test_a_pool_that_is_not_one_gets_one_message(
    tmp_path: Path, service: int, changes: dict[str, Any], message: str
) -> None:
    """It names file, field, value and fix."""
    tree = yaml.safe_load(Path(load_scenario("pools").source).read_text("utf-8"))
    tree["services"][service] |= changes
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_scenario(path)
