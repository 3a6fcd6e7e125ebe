"""The gate inside a fit of the controller: what passes, what is refused, and which model serves then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import poisson

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.core.model.forecast import REQUESTS
from autopilot.core.model.snapshot import F64
from models import fitting
from models.backtest import GateRules
from models.boosting import Boosting
from models.burst_demand import DemandFit, Fit
from models.bursts import Bursts
from models.demand import Ask, DemandModel
from models.demand_models import models_for
from models.fitting import Fitted, fit_demand
from models.proving import Trial
from tests.unit.models.test_bursts import run

ASK = Ask(60.0, (1, 2), peak=True)
SERIES, STEPS = 6, 400
NAMES = tuple(f"s{at}" for at in range(SERIES))


def rates(steps: int = STEPS + 60) -> F64:
    """Expected counts of services that jump up and down every ten minutes."""
    at = np.arange(steps)[None, :] + 3 * np.arange(SERIES)[:, None]
    return np.where(at // 10 % 2 == 0, 400.0, 100.0)


def waves() -> F64:
    """Counts of these services."""
    return np.random.default_rng(1).poisson(rates(STEPS)).astype(float)


class Told(Boosting):
    """Stands for the global model, whose fit takes long: it knows the expected counts, times `factor`."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(0)
        self.factor = factor

    def fit(self, values: F64, until: int, ask: Ask) -> None:
        """Count as much work as a small fit."""
        self.counted_work = 5000

    def predict(self, values: F64, first: int, ask: Ask, *, judged: bool = False) -> F64:
        """Quantiles of the highest expected count ahead."""
        steps, known = values.shape[1] - first, rates()[: len(values)]
        found = [
            np.max([known[:, first + ahead : first + ahead + steps] for ahead in range(1, most + 1)], axis=0)
            for most in ask.steps
        ]
        return np.asarray(poisson.ppf(ask.levels, self.factor * np.stack(found, axis=2)[..., None]), float)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    """Every fit gives a `Told`; its class, whose factor a test may set."""

    def candidates(seed: int) -> tuple[DemandModel, ...]:
        return tuple(Told() if isinstance(model, Boosting) else model for model in models_for(seed))

    monkeypatch.setattr(fitting, "models_for", candidates)
    return Told


def boosting_of(fit: Fitted) -> Boosting:
    """The global model that would serve."""
    return next(model for model in fit.models if isinstance(model, Boosting))


def given(fit: Fitted) -> DemandFit:
    """A fit of requests as the worker hands it back."""
    return DemandFit(Fit(REQUESTS, NAMES, waves()[:, :0], ASK, 1), fit, "digest")


def chosen_in(fit: Fitted) -> set[str]:
    """Names of the models that would serve."""
    return {fit.choice.names[place] for place in fit.choice.chosen.ravel()}


def test_a_model_that_foresees_more_passes_and_speaks(fitted: type[Told]) -> None:
    """It is compared with the models that would serve without it, and chosen everywhere."""
    found = fit_demand(waves(), ASK, 1, trial=Trial(NAMES, bootstrap_rng))
    assert found.proof is not None
    assert found.proof.verdict.passed, found.proof.verdict.reasons
    assert found.proof.verdict.against_champion
    assert boosting_of(found) is found.proof.challenger
    assert chosen_in(found) == {"boosting"}


def test_a_model_that_adds_nothing_is_refused_and_abstains(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that predicts ten times too much: the simple models serve, as if it had not been fitted."""
    wrong = [Told(10.0) if isinstance(model, Boosting) else model for model in models_for(0)]
    monkeypatch.setattr(fitting, "models_for", lambda *_: tuple(wrong))
    found = fit_demand(waves(), ASK, 1, trial=Trial(NAMES, bootstrap_rng))
    assert found.proof is not None
    assert not found.proof.verdict.passed
    assert np.isnan(boosting_of(found).predict(waves(), STEPS - 1, ASK)).all()
    assert "boosting" not in chosen_in(found)


def test_an_equal_model_does_not_replace_the_champion(fitted: type[Told]) -> None:
    """The champion stays in use where the new one is no better, in its place."""
    champion = Told()
    found = fit_demand(waves(), ASK, 2, trial=Trial(NAMES, bootstrap_rng, champion))
    assert found.proof is not None
    assert not found.proof.verdict.passed
    assert any("against the champion: 1.000" in reason for reason in found.proof.verdict.reasons)
    assert boosting_of(found) is champion
    assert chosen_in(found) == {"boosting"}


def test_a_better_model_replaces_the_champion(fitted: type[Told]) -> None:
    """A champion that has become too high by a half."""
    found = fit_demand(waves(), ASK, 2, trial=Trial(NAMES, bootstrap_rng, Told(1.5)))
    assert found.proof is not None
    assert found.proof.verdict.passed, found.proof.verdict.reasons
    assert boosting_of(found) is found.proof.challenger


def test_a_fit_over_its_budget_of_counted_work_is_refused(fitted: type[Told]) -> None:
    """Rows x trees, so that the verdict is the same on any machine."""
    found = fit_demand(waves(), ASK, 1, trial=Trial(NAMES, bootstrap_rng, rules=GateRules(max_counted_work=4999)))
    assert found.proof is not None
    assert found.proof.verdict.reasons == ("work, all: fits counted 5,000 rows x trees, at most 4,999 are allowed",)


def test_without_a_new_global_model_there_is_nothing_to_prove() -> None:
    """An hour of two services is too little to fit one: the simple models need no gate."""
    found = fit_demand(waves()[:2, :60], ASK, 1, trial=Trial(NAMES[:2], bootstrap_rng))
    assert found.proof is None
    assert found.counted_work == 0


def test_what_the_controller_is_told(fitted: type[Told]) -> None:
    """A model that passed is the champion of the next fit; a refusal is told with its first reason."""
    bursts = Bursts(1, horizons_s=(60.0, 120.0), gate=bootstrap_rng)
    run(bursts, waves().T / 60.0, list(NAMES))
    wanted = bursts.due(0.0)
    assert wanted is not None
    assert wanted.trial == Trial(NAMES, bootstrap_rng)
    found = fit_demand(waves(), ASK, 1, trial=Trial(NAMES, bootstrap_rng))
    assert bursts.adopt(given(found)) is None
    proof = found.proof
    assert proof is not None
    no = replace(proof, challenger=Told(), verdict=replace(proof.verdict, passed=False, reasons=("a", "b")))
    told = bursts.adopt(given(replace(found, proof=no)))
    assert told == f"the gate refused boosting for {REQUESTS}: a, and 1 more"
    bursts.demands[0]._next_fit = 0
    again = bursts.demands[0].wanted()
    assert again is not None
    assert again.trial == Trial(NAMES, bootstrap_rng, proof.challenger)


def test_a_series_that_drifted_stays_on_its_rung_while_the_same_model_speaks(fitted: type[Told]) -> None:
    """The ladder: the floor serves, a new model is fitted in the shadow; refused, the floor keeps serving."""
    bursts = Bursts(1, horizons_s=(60.0, 120.0), gate=bootstrap_rng)
    minutes = waves().T / 60.0
    run(bursts, minutes, list(NAMES))
    found = fit_demand(waves(), ASK, 1, trial=Trial(NAMES, bootstrap_rng))
    bursts.adopt(given(found))
    demand = bursts.demands[0]
    demand._drift._rung[:2] = 3
    speaks = run(bursts, minutes[:1], list(NAMES), start=STEPS).chosen
    assert speaks == ("last-value",) * 2 + ("boosting",) * 4
    proof = found.proof
    assert proof is not None
    no = replace(proof, verdict=replace(proof.verdict, passed=False, reasons=("a",)))
    bursts.adopt(given(replace(found, proof=no)))
    assert demand._drift.drifting.tolist() == [True] * 2 + [False] * 4
    bursts.adopt(given(found))
    assert not demand._drift.drifting.any()
