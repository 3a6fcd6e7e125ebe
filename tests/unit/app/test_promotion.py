"""The registry behind the running controller: what passed serves, what did not is kept with the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.app.backtests.promotion import Promoter
from autopilot.app.commands.run_commands import print_outcome
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.forecast import REQUESTS, TOKENS
from autopilot.registry import Registry, VerdictBook
from models.backtest import GateVerdict
from models.boosting import Boosting
from models.burst_demand import STEP_S, DemandFit, Fit
from models.bursts import Bursts
from models.demand import Ask
from models.fitting import Fitted, fit_demand
from models.proving import Proof
from tests.unit.models.test_bursts import calm

ASK = Ask(60.0, (1,), peak=True)


@pytest.fixture(scope="module")
def plain() -> Fitted:
    """A fit of an hour, without a global model."""
    return fit_demand(calm(60, 2).T, ASK, 1)


def small(seed: int) -> Boosting:
    """A global model of two trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = np.random.default_rng(seed).normal(size=(60, 2))
    member = HistGradientBoostingRegressor(max_iter=2).fit(rows, rows[:, 0])
    model = Boosting(seed)
    model._step_s, model._peak = STEP_S, True
    model._members[2, 0.9] = [member, member]
    model._columns[2] = {"mean": np.array([0.5, 1.0]), "lag 0": np.array([0.0])}
    return model


def judged(plain: Fitted, seed: int, *, passed: bool, kind: str = REQUESTS) -> DemandFit:
    """What the worker hands over: a challenger and the verdict on it."""
    verdict = GateVerdict(passed, "1", True, (), () if passed else ("it is behind",))
    fit = Fit(kind, ("a", "b"), np.zeros((2, 0)), ASK, seed, from_s=600.0)
    return DemandFit(fit, replace(plain, proof=Proof(small(seed), verdict)), f"digest {seed}")


def test_what_passed_is_stored_with_its_manifest_and_serves(tmp_path: Path, plain: Fitted) -> None:
    """Data window, digest, seed and verdict are on record; the next controller begins with it as champion."""
    registry = Registry(tmp_path)
    promoter = Promoter(registry)
    assert promoter.champion is None
    assert promoter("bursts", judged(plain, 1, passed=True)) == ""
    manifest = registry.find("bursts")
    assert (manifest.data["from_s"], manifest.data["to_s"]) == (600.0, 600.0 + 60 * 60.0)
    assert (manifest.data["digest"], manifest.seed, manifest.created_by) == ("digest 1", 1, "controller")
    assert [each["passed"] for each in VerdictBook(tmp_path).summaries()] == [True]
    after = Promoter(registry)
    assert after.champion is not None
    assert Bursts(1, gate=bootstrap_rng, champion=after.champion).demands[0]._champion is after.champion
    assert promoter("bursts", judged(plain, 2, passed=True)) == ""
    assert registry.find("bursts").parent == manifest.version


def test_what_was_refused_is_kept_and_does_not_serve(tmp_path: Path, plain: Fitted) -> None:
    """The verdict names the reason; what serves is what served before."""
    registry = Registry(tmp_path)
    promoter = Promoter(registry)
    promoter("bursts", judged(plain, 1, passed=True))
    serving = registry.pointer("bursts").current
    assert promoter("bursts", judged(plain, 2, passed=False)) == ""
    assert registry.pointer("bursts").current == serving
    assert len(registry.versions("bursts")) == 2
    reasons = [tuple(each["reasons"]) for each in VerdictBook(tmp_path).summaries()]
    assert sorted(reasons) == [(), ("it is behind",)]


def test_somebody_who_promotes_in_between_is_not_overruled(tmp_path: Path, plain: Fitted) -> None:
    """The controller's model was judged against another champion: it is stored, not promoted, and not used."""
    registry = Registry(tmp_path)
    ours, other = Promoter(registry), Promoter(registry)
    assert other("bursts", judged(plain, 1, passed=True)) == ""
    told = ours("bursts", judged(plain, 2, passed=True))
    assert "was judged against none" in told
    assert told.startswith("stored as ")
    assert len(registry.versions("bursts")) == 2
    assert registry.find("bursts").seed == 1


def test_what_cannot_be_stored_is_not_used(tmp_path: Path, plain: Fitted) -> None:
    """A quota that is too small: the reason is told, and nothing serves."""
    registry = Registry(tmp_path, quota_mib=0.001)
    told = Promoter(registry)("bursts", judged(plain, 1, passed=True))
    assert told.startswith("not used, because it could not be stored:")
    assert registry.pointer("bursts").current == ""


def test_a_champion_that_is_no_such_model_is_passed_over(
    tmp_path: Path, plain: Fitted, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result names it; the controller starts with its simple models, and can promote over it."""
    from tests.kits.registry_kit import manifest

    registry = Registry(tmp_path)
    stored = registry.put({"model": "other"}, manifest(libraries={}))
    registry.promote("bursts", stored.version, by="a person", why="a mistake")
    (tmp_path / "jobs.csv").write_text("job_id,tenant,submit_s,duration_s,gpus\na,t,0,60,1\n")
    options = SimulateOptions(
        jobs=tmp_path / "jobs.csv", cluster="1x8", policies=("autopilot",), telemetry="off", registry=tmp_path
    )
    print_outcome(simulate(options))
    assert f"autopilot: models: skipped {stored.version[:12]}: not a boosting model" in capsys.readouterr().out
    promoter = Promoter(registry)
    assert promoter.champion is None
    assert promoter("bursts", judged(plain, 1, passed=True)) == ""
    assert registry.find("bursts").seed == 1


@pytest.mark.parametrize("what", ["tokens", "not judged", "another forecaster's"])
def test_what_is_not_for_the_registry_is_left_alone(what: str, tmp_path: Path, plain: Fitted) -> None:
    """Nothing is written, and what the fit gave may be used."""
    results: dict[str, Any] = {
        "tokens": judged(plain, 1, passed=True, kind=TOKENS),
        "not judged": replace(judged(plain, 1, passed=True), fitted=plain),
        "another forecaster's": object(),
    }
    assert Promoter(Registry(tmp_path))("x", results[what]) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"step_s": 600.0, "peak": False},
            "it forecasts values of demand in steps of 10 min, not peaks of demand",
        ),
        ({"steps": 7}, "no model for these horizons"),
        (
            {"columns": ["mean", "an older one"]},
            "it uses an older one, which this version does not compute",
        ),
    ],
)
def test_a_champion_for_something_else_is_passed_over(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Another step or target, other horizons, features of another release: named, and not asked for a forecast."""
    registry = Registry(tmp_path)
    content = small(1).content()
    whole = {name: value for name, value in changed.items() if name in content}
    content |= whole
    content["parts"] = [
        part | {name: value for name, value in changed.items() if name not in whole} for part in content["parts"]
    ]
    from tests.kits.registry_kit import manifest

    stored = registry.put(content, manifest(libraries={}))
    registry.promote("bursts", stored.version, by="a person", why="a mistake")
    promoter = Promoter(registry)
    assert promoter.champion is None
    assert words in promoter.notes[0]
