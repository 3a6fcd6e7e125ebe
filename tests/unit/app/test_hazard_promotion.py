"""Hazards behind the running controller: judged, stored, served after a restart; refused and damaged ones are not."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.app.backtests.promotion import Promoter
from autopilot.app.runs.wiring import Managed, foreseers
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.registry import Registry, VerdictBook
from autopilot.service.settings import Settings
from autopilot.service.wiring import _forecasters as service_forecasters
from autopilot.worker import InlineWorker
from models.hazard_index import Hazards
from models.hazard_proving import HazardFit, StoredCounts, stored_counts
from models.hazards import BINS, EDGES_S
from models.runtimes import Runtimes
from simulator.world.cluster import Cluster
from tests.kits.core_world import Item, snapshot

RULES = Forecasting(trees=10, most_rows=4000, fit_delay_s=0.0)
BATCH_S = 6 * 3600.0
"""Time between two batches of jobs."""

TENANTS = ("minutes", "hours")
USUAL_S = {"minutes": 100.0, "hours": 3000.0}


def at(tenant: str, number: int, ran_s: float, state: State) -> Item:
    """A job that came in the batch of its number."""
    columns = {
        "tenant": TENANTS.index(tenant),
        "submit_s": BATCH_S / 100.0 * number,
        "served_s": ran_s,
        "state": state,
        "gpus": 8,
    }
    return Item(f"{tenant}-{number}", columns)


def world(*items: Item) -> ClusterSnapshot:
    """Two tenants."""
    return snapshot("1x8", items, tenants=TENANTS)


def lived(model: Hazards, *, told_apart: bool, turns: int = 18) -> None:
    """Jobs of two tenants come, fifty a batch each, and end by the next; their run times tell them apart, or not."""
    rng, before = np.random.default_rng(4), list[Item]()
    for turn in range(turns):
        fresh, ends = list[Item](), list[Item]()
        for number in range(100 * turn, 100 * turn + 100):
            tenant = TENANTS[number % 2]
            usual_s = USUAL_S[tenant] if told_apart else 1000.0
            fresh.append(at(tenant, number, 0.0, State.PENDING))
            ends.append(at(tenant, number, float(rng.lognormal(np.log(usual_s), 0.5)), State.SUCCEEDED))
        model.update(BATCH_S * (turn + 1) - 10.0, world(*fresh, *before))
        before = ends
    model.update(BATCH_S * (turns + 1) - 10.0, world(*before))


def fitted(model: Hazards, keep: Promoter, now_s: float = 20 * BATCH_S) -> str:
    """What the controller says after the fit of its worker, "" when it serves."""
    work = model.due(now_s)
    assert work is not None
    assert pickle.loads(pickle.dumps(work)).now_s == now_s
    worker = InlineWorker(keep)
    worker.start("predicted", work, now_s, RULES)
    fit = worker.ended(now_s)
    assert fit is not None
    return fit.problem or model.adopt(fit.result) or ""


def index_of(model: Hazards, now_s: float = 21 * BATCH_S) -> list[float]:
    """The index of a new job of each tenant, 1/s."""
    snap = world(*(at(tenant, 9999, 0.0, State.PENDING) for tenant in TENANTS))
    model.update(now_s, snap)
    return [float(each) for each in model.index_per_s(now_s, snap)]


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A registry in which hazards were promoted, and the index that their controller gave."""
    folder = tmp_path_factory.mktemp("registry")
    model = Hazards(RULES, gate=bootstrap_rng)
    lived(model, told_apart=True)
    assert np.isnan(index_of(model, 19 * BATCH_S)).all()  # nothing passed yet
    assert fitted(model, Promoter(Registry(folder))) == ""
    return folder, index_of(model)


def test_hazards_that_pass_are_promoted_and_serve_after_a_restart(promoted: tuple[Path, list[float]]) -> None:
    """The next controller gives the same index from its first job on; one without a registry's version gives none."""
    folder, before = promoted
    assert before[0] > 10.0 * before[1]
    stored = Registry(folder).find("hazards")
    assert (stored.created_by, stored.feature_schema) == ("controller", ("tenant", "width_milli", "age_s"))
    (summary,) = VerdictBook(folder).summaries()
    assert summary["passed"]
    keep = Promoter(Registry(folder))
    assert keep.notes == ()
    assert index_of(Hazards(RULES, gate=bootstrap_rng, champion=keep.hazards)) == pytest.approx(before, rel=0.02)
    whole = Runtimes(RULES, gate=bootstrap_rng, hazards=keep.hazards)
    assert index_of(whole.hazards) == pytest.approx(before, rel=0.02)
    assert np.isnan(index_of(Hazards(RULES, gate=bootstrap_rng))).all()


def test_a_model_of_run_times_carries_the_index(promoted: tuple[Path, list[float]]) -> None:
    """`predicted` gives it beside its quantiles, also where these abstain; the same counts go on."""
    folder, before = promoted
    model = Runtimes(RULES, gate=bootstrap_rng, hazards=Promoter(Registry(folder)).hazards)
    snap = world(*(at(tenant, 9999, 0.0, State.PENDING) for tenant in TENANTS))
    model.update(21 * BATCH_S, snap)
    found = model.forecast(21 * BATCH_S, snap).runtimes
    assert found is not None
    assert found.known.tolist() == [False, False]
    assert found.hazard_index_per_s == pytest.approx(before, rel=0.02)


def test_hazards_that_tell_no_tenants_apart_are_refused(tmp_path: Path) -> None:
    """Run times are alike: tenant and width say nothing, the gate says why, and no index is given."""
    registry = Registry(tmp_path)
    model = Hazards(RULES, gate=bootstrap_rng)
    lived(model, told_apart=False)
    why = fitted(model, Promoter(registry))
    assert why.startswith("the gate refused hazards by tenant and width: hazards, all: crps_log against the floor")
    assert np.isnan(index_of(model)).all()
    assert registry.pointer("hazards").current == ""
    assert len(registry.versions("hazards")) == 1
    assert model.due(21 * BATCH_S) is None  # not again before more jobs have ended


def test_a_damaged_file_is_refused(promoted: tuple[Path, list[float]], tmp_path: Path) -> None:
    """One byte of it was changed: the next controller names it and begins without hazards."""
    registry = Registry(tmp_path)
    model = Hazards(RULES, gate=bootstrap_rng)
    lived(model, told_apart=True)
    assert fitted(model, Promoter(registry)) == ""
    stored = registry.find("hazards")
    blob = registry.blob_path(stored.artifact)
    whole = bytearray(blob.read_bytes())
    whole[len(whole) // 2] ^= 1
    blob.write_bytes(bytes(whole))
    keep = Promoter(registry)
    assert keep.hazards is None
    assert "its artifact was changed or truncated; fit it again" in keep.notes[0]


def test_the_service_and_a_simulation_begin_with_what_serves(promoted: tuple[Path, list[float]]) -> None:
    """Both hand the stored counts to their forecaster of run times; without a registry every count serves."""
    folder, before = promoted
    keep, nobody = Promoter(Registry(folder)), cast("Cluster", None)
    served = service_forecasters(Settings(), Policy(), keep)[0]
    simulated = foreseers(nobody, Managed(name="a", policy=Policy()), keep)[0]
    alone = foreseers(nobody, Managed(name="a", policy=Policy(), durations="hazard"), keep)[0]
    for model in (served, simulated):
        assert isinstance(model, Runtimes)
        assert index_of(model.hazards) == pytest.approx(before, rel=0.02)
    assert isinstance(alone, Hazards)
    assert index_of(alone) == pytest.approx(before, rel=0.02)
    plain = foreseers(nobody, Managed(name="a", policy=Policy()))[0]
    assert isinstance(plain, Runtimes)
    assert plain.hazards.serves


def counts() -> StoredCounts:
    """Counts of one tenant."""
    return StoredCounts((("a", 1000),), np.ones((1, BINS)), np.full((1, BINS), 60.0), 40, 100.0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": "runtimes"}, "not a model of hazards"),
        ({"edges_s": EDGES_S[:-1]}, "its age bins are others than those of this version; fit it again"),
        ({"ended": np.ones((2, BINS))}, "its counts do not match its tenants and widths; fit it again"),
        ({"risk_s": np.full((1, BINS), -1.0)}, "a count is negative or not finite; fit it again"),
        ({"ended": np.full((1, BINS), np.nan)}, "a count is negative or not finite; fit it again"),
    ],
)
def test_counts_that_cannot_be_true_are_refused(change: dict[str, Any], problem: str) -> None:
    """With what to do."""
    with pytest.raises(InputError, match=problem):
        stored_counts({**counts().content(), **change})


def test_counts_are_read_as_they_were_stored() -> None:
    """And a fit that was refused changes nothing."""
    found = stored_counts(counts().content())
    assert found.pairs == counts().pairs
    assert found.risk_s.tobytes() == counts().risk_s.tobytes()
    model = Hazards(RULES, gate=bootstrap_rng, champion=found)
    lived(model, told_apart=False)
    work = model.due(20 * BATCH_S)
    assert work is not None
    fit = work.run()
    refused = replace(fit, verdict=replace(fit.verdict, passed=False, reasons=("it is behind",)))
    assert isinstance(refused, HazardFit)
    assert model.adopt(refused) == "the gate refused hazards by tenant and width: it is behind"
    assert model.serves
