"""Deployments and the requests that reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from simulator.inference.deployments import UNKNOWN_TENANT, requests_for
from simulator.inference.synthetic_requests import ServiceLoad
from tests.kits.service_kit import CHAT, deployment


def write_requests(path: Path, rows: Sequence[tuple[float, str, int, int]]) -> Path:
    """A request file."""
    lines = ["t_s,service,input_tokens,output_tokens", *(f"{a},{b},{c},{d}" for a, b, c, d in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_named_service_takes_its_deployment_and_an_unknown_one_a_default_that_is_told(
    tmp_path: Path,
) -> None:
    """The notes say what was assumed and which deployments have no requests."""
    path = write_requests(tmp_path / "r.csv", [(t, "chat" if t % 2 else "mystery", 100, 400) for t in range(600)])
    idle = replace(deployment(), serving=replace(CHAT, name="idle"))
    found = requests_for([deployment(), idle], path, horizon_s=0.0)
    by_name = {each.name: each for each in found.deployments}
    assert set(by_name) == {"chat", "mystery"}
    assert by_name["chat"] == deployment()
    mystery = by_name["mystery"]
    # half a request/s x 10.0125 s = 5 busy slots of 16 at a target of .6: one replica
    assert (mystery.tenant, mystery.initial_replicas, mystery.autoscaler.max_replicas) == (
        UNKNOWN_TENANT,
        1,
        2,
    )
    assert mystery.serving.objective_s == pytest.approx(2 * 10.0125, abs=0.001)
    assert any("mystery has no description" in note for note in found.notes)
    assert any("idle" in note for note in found.notes)
    assert found.horizon_s == 599.0
    sizes = [len(source.upto(1e9).t_s) for source in found.sources()]
    assert sizes == [300, 300]
    assert [len(source.upto(1e9).t_s) for source in found.sources()] == sizes, "each run opens them anew"


def test_rate_scale_thins_requests_and_scales_replicas(tmp_path: Path) -> None:
    """A tenth of the requests meets a tenth of the replicas, and the notes say so."""
    path = write_requests(tmp_path / "r.csv", [(t / 10, "chat", 1, 1) for t in range(5000)])
    plan = deployment(low=5, high=40, initial=20)
    found = requests_for([plan], path, horizon_s=0.0, rate_scale=0.1, seed=3)
    scaled = found.deployments[0]
    limits = scaled.autoscaler.min_replicas, scaled.initial_replicas, scaled.autoscaler.max_replicas
    assert limits == (1, 2, 4)
    assert 400 < len(found.sources()[0].upto(1e9).t_s) < 600
    assert "0.1 of the requests" in found.notes[0]
    load = ServiceLoad(name="chat", mean_rps=5.0)
    drawn = requests_for([replace(plan, load=load)], horizon_s=2000.0, rate_scale=0.1)
    assert len(drawn.sources()[0].upto(1e9).t_s) < 3000


def test_synthetic_requests_begin_when_the_first_replicas_can_be_there() -> None:
    """What would come before `calls_from_s` is left out; the rest is the same."""
    load = ServiceLoad(name="chat", mean_rps=2.0)
    whole = requests_for([deployment(load=load)], horizon_s=3000.0).sources()[0].upto(3000.0).t_s
    late = requests_for([deployment(load=load, calls_from_s=300.0)], horizon_s=3000.0).sources()[0]
    parts = np.concatenate([late.upto(250.0).t_s, late.upto(700.0).t_s, late.upto(3000.0).t_s])
    np.testing.assert_array_equal(parts, whole[whole >= 300.0])


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan")])
def test_a_rate_scale_outside_its_range_is_refused(scale: float) -> None:
    """Only thinning is possible."""
    with pytest.raises(InputError, match="rate-scale"):
        requests_for([], horizon_s=60.0, rate_scale=scale)


def test_two_services_of_one_name_are_refused() -> None:
    """Requests could not be told apart."""
    with pytest.raises(InputError, match="'chat' occurs twice"):
        requests_for([deployment(), deployment()], horizon_s=60.0)
