"""Models of run times behind the running controller: fitted, judged, kept, served after a restart; refused ones are
not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.app.backtests.promotion import Promoter
from autopilot.app.runs.wiring import Managed, foreseers
from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.snapshot import State
from autopilot.registry import Registry, VerdictBook
from autopilot.worker import InlineWorker
from models import runtimes
from models.backtest import GateVerdict
from models.runtime_boosting import Boosted, BoostingRules, content_of, fit_boosted
from models.runtime_proving import Proof
from models.runtimes import FEATURES, Fit, FitWork, Runtimes
from simulator.world.cluster import Cluster
from tests.contracts.test_runtime_models import said, world
from tests.kits.core_world import Item
from tests.kits.registry_kit import manifest, small_boosted

RULES = Forecasting(trees=20, most_rows=2000, fit_delay_s=0.0, growth_ratio=0.05)
HOUR_S = 3600.0
BATCH = 60
MEDIAN = LEVELS.index(0.5)


def judged(seed: int, *, passed: bool) -> Fit:
    """What the worker hands over: a challenger and the verdict on it."""
    nothing = np.zeros(0)
    work = FitWork(np.zeros((0, len(FEATURES))), nothing, nothing, BoostingRules(), seed, None, 600.0, 9000.0)
    boosted = small_boosted(len(FEATURES))
    verdict = GateVerdict(passed, "1", True, (), () if passed else ("it is behind",))
    return Fit(boosted if passed else None, Proof(boosted, verdict), work, f"digest {seed}")


def batch(first: int, state: State) -> list[Item]:
    """An hour of jobs of one name, a minute apart, whose run time follows the memory they ask for: seconds, or
    minutes.
    """
    rng = np.random.default_rng(first)
    kinds = rng.integers(0, 2, BATCH).tolist()
    noise = rng.lognormal(0.0, 0.1, BATCH).tolist()
    return [
        Item(
            f"job-{first + number}",
            {
                "state": state,
                "memory_mib": 1024 * (1 + kind),
                "submit_s": HOUR_S * first / BATCH + 60.0 * number,
                "name": "train",
                "served_s": 10.0 * 30.0**kind * more if state == State.SUCCEEDED else 0.0,
            },
        )
        for number, (kind, more) in enumerate(zip(kinds, noise, strict=True))
    ]


def lived(model: Runtimes, keep: Promoter) -> list[str]:
    """Hours with a batch each, first seen at its end, until the controller's worker has run a fit; the messages about
    it.
    """
    worker = InlineWorker(keep)
    for hour in range(32):
        now_s = HOUR_S * (hour + 1)
        said_of(model, now_s, batch(BATCH * hour, State.PENDING))
        now_s += 600.0
        model.update(now_s, world(*batch(BATCH * hour, State.SUCCEEDED)))
        if (work := model.due(now_s)) is not None:
            worker.start(model.name, work, now_s, RULES)
            fit = worker.ended(now_s)
            assert fit is not None
            return [fit.problem or model.adopt(fit.result) or ""]
    return []


def said_of(model: Runtimes, now_s: float, items: list[Item]) -> np.ndarray:
    """Quantiles of the run times of new jobs."""
    found = model.forecast(now_s, world(*items)).runtimes
    assert found is not None
    return found.total_s


def apart(model: Runtimes) -> float:
    """The ratio of the forecast run times of a job of much memory and one of little, at the upper quantile."""
    new = [
        Item(f"new-{kind}", {"state": State.PENDING, "memory_mib": 1024 * (1 + kind), "submit_s": 1e6, "name": "train"})
        for kind in (0, 1)
    ]
    upper = said_of(model, 1e6, new)[:, LEVELS.index(0.9)]
    return float(upper[1] / upper[0])


def test_a_good_model_is_promoted_and_serves_after_a_restart(tmp_path: Path) -> None:
    """It tells from the memory what the last jobs do not tell; the next controller says so from its first job on."""
    registry = Registry(tmp_path)
    model = Runtimes(RULES, 3, gate=bootstrap_rng)
    assert lived(model, Promoter(registry)) == [""]
    stored = registry.find("runtimes")
    assert (stored.created_by, stored.seed, stored.feature_schema) == ("controller", 3, FEATURES)
    assert stored.data["from_s"] == 0.0
    assert stored.data["from_s"] < stored.data["to_s"] < 32 * HOUR_S
    book = VerdictBook(tmp_path)
    (summary,) = book.summaries()
    assert summary["passed"]
    assert book.read(summary["run"], "run time, t0") is not None  # a group is a tenant's name
    after = Runtimes(RULES, 3, gate=bootstrap_rng, champion=Promoter(registry).boosted)
    assert apart(after) > 10.0
    assert np.isnan(apart(Runtimes(RULES, 3, gate=bootstrap_rng)))


def test_a_bad_model_is_refused_and_does_not_speak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted on shuffled run times: it is stored with the reason, and the previous model stays in use."""

    def shuffled(features: Any, log_s: Any, *rest: Any) -> Boosted | None:
        return fit_boosted(features, np.random.default_rng(1).permutation(log_s), *rest)

    monkeypatch.setattr(runtimes, "fit_boosted", shuffled)
    registry = Registry(tmp_path)
    model = Runtimes(RULES, 3, gate=bootstrap_rng)
    told = lived(model, Promoter(registry))
    assert len(told) == 1
    assert told[0].startswith(
        "the gate refused boosting for run times: run time, all: pinball_p90 against the champion"
    )
    assert model._fit.boosted is None
    assert registry.pointer("runtimes").current == ""
    assert len(registry.versions("runtimes")) == 1
    assert [each["passed"] for each in VerdictBook(tmp_path).summaries()] == [False]


def test_a_tampered_artifact_is_refused_and_the_floor_speaks_on(tmp_path: Path) -> None:
    """One byte of it was changed: the next controller names it, begins without a model, and can promote over it."""
    registry = Registry(tmp_path)
    assert Promoter(registry)("predicted", judged(1, passed=True)) == ""
    assert Promoter(registry).boosted is not None
    stored = registry.find("runtimes")
    blob = registry.blob_path(stored.artifact)
    whole = bytearray(blob.read_bytes())
    whole[len(whole) // 2] ^= 1
    blob.write_bytes(bytes(whole))
    keep = Promoter(registry)
    assert keep.boosted is None
    assert keep.notes == (
        f"skipped {stored.version[:12]}: runtimes {stored.version[:12]}: its artifact was changed or truncated; "
        f"fit it again",
    )
    model = Runtimes(RULES, gate=bootstrap_rng, champion=keep.boosted)
    said(model, 0.0, world(*batch(0, State.PENDING)))
    said(model, HOUR_S, world(*batch(0, State.SUCCEEDED)))
    assert np.isfinite(said_of(model, HOUR_S, batch(BATCH, State.PENDING))).all()
    assert keep("predicted", judged(2, passed=True)) == ""
    assert registry.find("runtimes").seed == 2


def test_kinds_do_not_stand_in_for_each_other(tmp_path: Path) -> None:
    """A refused model of run times is kept beside the one that serves; nothing is known of demand."""
    registry = Registry(tmp_path)
    keep = Promoter(registry)
    assert keep("predicted", judged(1, passed=True)) == ""
    first = registry.find("runtimes")
    assert keep("predicted", judged(2, passed=False)) == ""
    assert keep("predicted", judged(3, passed=True)) == ""
    assert registry.find("runtimes").parent == first.version
    assert (len(registry.versions("runtimes")), registry.versions("bursts")) == (3, [])
    assert Promoter(registry).champion is None


@pytest.mark.parametrize(
    ("content", "schema", "problem"),
    [
        ({"model": "other"}, FEATURES, "not a model of run times"),
        (
            {"model": "runtimes", "boosted": content_of(small_boosted(len(FEATURES)))},
            ("column 0",),
            f"a model of run times uses {len(FEATURES)} columns, these jobs have 1; fit it again",
        ),
        (
            {"model": "runtimes", "boosted": content_of(small_boosted(4))},
            ("a", "b", "c", "rdma_pct"),
            "it uses unknown attributes of jobs: a, rdma_pct; fit it again",
        ),
    ],
    ids=["foreign", "other width", "other columns"],
)
def test_a_champion_that_cannot_serve_is_named(
    tmp_path: Path, content: dict[str, Any], schema: tuple[str, ...], problem: str
) -> None:
    """The controller begins without it."""
    registry = Registry(tmp_path)
    stored = registry.put(content, manifest("runtimes", libraries={}, feature_schema=schema))
    registry.promote("runtimes", stored.version, by="a person", why="a mistake")
    keep = Promoter(registry)
    assert keep.boosted is None
    assert keep.notes == (f"skipped {stored.version[:12]}: {problem}",)


def test_a_run_with_a_registry_is_under_the_gate_and_begins_with_what_serves(tmp_path: Path) -> None:
    """Without one every fit is used, as before."""
    registry = Registry(tmp_path)
    Promoter(registry)("predicted", judged(1, passed=True))
    keep, nobody = Promoter(registry), cast("Cluster", None)
    gated, *_ = foreseers(nobody, Managed(name="a", policy=Policy()), keep)
    plain, *_ = foreseers(nobody, Managed(name="a", policy=Policy()))
    assert isinstance(gated, Runtimes)
    assert isinstance(plain, Runtimes)
    assert gated._gate is not None
    assert gated._fit.boosted is keep.boosted is not None
    assert plain._gate is None
    assert plain._fit.boosted is None
