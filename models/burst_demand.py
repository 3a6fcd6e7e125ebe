"""Forecasts of one kind of demand (requests or tokens) for all services: state, promises and fits.

Once a minute `Demand` adds the rates of the last minute, compares matured promises with the outcome, and
makes new ones with the model chosen for each series. Before the first fit, and after the drift of a model, the last
value serves under the same conformal layer. A promise out of reach is NaN, with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.errors import invariant
from autopilot.core.model.forecast import Forecast
from autopilot.core.model.snapshot import F64, Bools
from models.backtest import FreshRng
from models.baselines import LastValue
from models.boosting import Boosting
from models.conformal import Delivered
from models.demand import LEVELS, Ask, DemandModel, tidy
from models.drift import Drift
from models.fitting import Fitted, fit_demand
from models.layer import Layer, promised
from models.proving import Trial
from models.rates import Rates
from models.weighing import Weighing, mixed

STEP_S = 60.0
"""Services are measured by the minute (ServiceTable)."""


HORIZONS_S = (120.0, 300.0, 900.0)
"""Forecast lead times: the decision uses the shortest that covers its start-ups."""


RETRAIN_S = 6 * 3600.0


FIRST_FIT_STEPS = 60
"""Steps of history before the first fit; the next ones follow when it has doubled, until the regular cadence."""


USUAL_STEPS = 1440
"""Half-life, in steps, of the usual demand of a series: a service that grew is measured by its present size."""


MOST_FORESEEN = 1000
"""Maximum number of series that the global model evaluates in one minute: a fifth of a second of CPU."""


Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A requested fit with everything it needs, to be run anywhere. The first column of `values` is at `from_s`."""

    kind: str
    names: tuple[str, ...]
    values: F64
    ask: Ask
    seed: int
    trial: Trial | None = None
    from_s: float = 0.0

    def run(self) -> DemandFit:
        """Fit. Takes seconds to minutes; has no side effects."""
        fitted = fit_demand(self.values, self.ask, self.seed, self.trial)
        digest = sha256(np.ascontiguousarray(self.values).tobytes()).hexdigest()
        return DemandFit(replace(self, values=self.values[:, :0], trial=None), fitted, digest)


@dataclass(frozen=True, slots=True)
class DemandFit:
    """The result of a fit. `asked` is the request without its values; `digest` identifies them."""

    asked: Fit
    fitted: Fitted
    digest: str = ""


def ask_of(horizons_s: Sequence[float] = HORIZONS_S) -> Ask:
    """The request of the controller to a model of demand: peaks, by whole minutes ahead."""
    return Ask(STEP_S, tuple(max(1, round(each / STEP_S)) for each in horizons_s), peak=True)


@dataclass(frozen=True, slots=True)
class Made:
    """The promises of one step, and their inputs. Axes [series], [series, horizons], [series, horizons, levels]."""

    raw: F64  # of the model on trial
    margins: F64
    root: F64  # unit of the margins
    own: F64  # the model's promise
    floor: F64  # forecast of the floor
    usual: F64  # unit of the floor's margins
    floor_margins: F64
    floor_upper: F64  # the floor's promise
    upper: F64  # the final promise: both mixed
    fell: Bools  # where the floor replaces the model that was chosen


class Demand:
    """Forecasts of one kind of demand for all services. With `gate` a new global model has to beat the `champion`."""

    def __init__(
        self,
        kind: str,
        seed: int,
        horizons_s: Sequence[float],
        *,
        gate: FreshRng | None = None,
        champion: Boosting | None = None,
    ) -> None:
        self._gate, self._champion = gate, champion
        self.kind, self.rates = kind, Rates(STEP_S)
        self.ask = ask_of(horizons_s)
        self._seed = seed
        self._floor = LastValue()
        self._models: dict[str, DemandModel] = {self._floor.name: self._floor}
        self._names: tuple[str, ...] = (self._floor.name,)
        self._chosen = np.zeros((0, len(self.ask.steps)), np.int64)
        self._layer = Layer(LEVELS, 0, self.ask.steps)
        self._drift = Drift(0, overlap=self.ask.steps[0])
        self._delivered = Delivered(0, len(LEVELS))
        # learns from every series, whichever model serves it
        self._floor_layer = Layer(LEVELS, 0, self.ask.steps)
        self._floor_margins: F64 | None = None  # renewed one horizon per step
        self._weighing = Weighing(LEVELS, 0, self.ask.steps)
        # usual demand of each series: total and weight of the latest days
        self._total, self._weight = np.zeros(0), np.zeros(0)
        # its root in the last fit, NaN for series added since, and how many there were then
        self._root, self._fitted = np.zeros(0), 0
        # known minutes of each series, and the last of them
        self._known, self._counted = np.zeros(0, np.int64), np.zeros(0, np.int64)
        # names and positions of the models behind the newest promises
        self._spoke: tuple[tuple[str, ...], NDArray[np.int64]] = (self._names, self._chosen)
        self._made: dict[int, Made] = {}  # by step
        self._fits = 0
        self._next_fit = FIRST_FIT_STEPS
        self._steps_seen = 0

    # --- taking in --------------------------------------------------------------------------------

    def observe(self, names: Sequence[str], steps: NDArray[np.int64], values: F64) -> bool:
        """Take in one value of each service, measured at `steps`; returns True if a new step has begun."""
        newest = int(steps.max())
        rows, reused, added = self.rates.rows(names)
        self._grow(added)
        self._forget(reused)
        begun = self.rates.advance(newest)
        self.rates.put(rows, steps, values)
        values = tidy(values)
        fade = 0.5 ** (begun / USUAL_STEPS)
        self._total, self._weight = self._total * fade, self._weight * fade
        known = ~np.isnan(values) & (steps > self._counted[rows])
        self._total[rows[known]] += values[known]
        self._weight[rows[known]] += 1.0
        self._known[rows[known]] += 1
        self._counted[rows[known]] = steps[known]
        self._steps_seen += begun
        return begun > 0

    def _grow(self, added: int) -> None:
        if added:
            self._layer.grow(added)
            self._floor_layer.grow(added)
            self._floor_margins = None
            self._weighing.grow(added)
            self._drift.grow(added)
            self._delivered.grow(added * len(self.ask.steps))
            self._chosen = np.vstack([self._chosen, np.zeros((added, len(self.ask.steps)), np.int64)])
            self._total, self._weight = (np.pad(each, (0, added)) for each in (self._total, self._weight))
            self._root = np.pad(self._root, (0, added), constant_values=np.nan)
            self._known = np.pad(self._known, (0, added))
            self._counted = np.pad(self._counted, (0, added), constant_values=-1)

    def _forget(self, reused: Sequence[int]) -> None:
        """Reset rows assigned to another name."""
        if not reused:
            return
        rows = np.array(reused, np.int64)
        self._layer.forget(rows)
        self._floor_layer.forget(rows)
        self._floor_margins = None
        self._weighing.forget(rows)
        self._drift.forget(rows)
        self._delivered.forget(self._groups(rows).ravel())
        self._chosen[rows], self._total[rows], self._weight[rows] = 0, 0.0, 0.0
        self._root[rows], self._known[rows], self._counted[rows] = np.nan, 0, -1
        for made in self._made.values():
            old = rows[rows < len(made.raw)]
            for each in (made.raw, made.own, made.floor, made.floor_upper, made.upper):
                each[old] = np.nan

    def _groups(self, rows: Rows) -> NDArray[np.int64]:
        """Positions of rows x horizons in the table of delivered promises."""
        count = len(self.ask.steps)
        return np.asarray(rows[:, None] * count + np.arange(count))

    # --- comparing --------------------------------------------------------------------------------

    def settle(self, now_s: float) -> None:
        """Compare matured promises with their outcomes, once each.

        One step late: the minute of some services arrives some ticks after that of others, and counts as well.
        """
        values, newest = self.rates.values, self.rates.step
        for horizon, ahead in enumerate(self.ask.steps):
            made = self._made.get(newest - 1 - ahead)
            if made is None or values.shape[1] <= ahead + 1:
                continue
            rows = np.arange(len(made.raw), dtype=np.int64)
            # NaN where a minute between was not measured
            came = values[: len(rows), -ahead - 1 : -1].max(axis=1)
            raw, margins, fell = made.raw[:, horizon], made.margins[:, horizon], made.fell[:, [horizon]]
            self._layer.learn(horizon, rows, np.where(fell, np.nan, raw), made.root, came, margins)
            said = made.floor_margins[:, horizon]
            self._floor_layer.learn(horizon, rows, made.floor[:, horizon], made.usual, came, said)
            self._weighing.learn(horizon, rows, came, made.floor_upper[:, horizon], made.own[:, horizon])
            self._delivered.note(now_s, self._groups(rows)[:, horizon], came, made.upper[:, horizon])
            if horizon == 0:
                missed = came > made.own[:, 0, LEVELS.index(0.9)]
                with np.errstate(invalid="ignore"):
                    residual = (np.sqrt(came) - np.sqrt(raw[:, 0])) / made.root
                self._drift.learn(rows, residual, missed)
        for old in [step for step in self._made if step < newest - self.ask.longest]:
            del self._made[old]

    # --- foreseeing -------------------------------------------------------------------------------

    def foresee(self) -> None:
        """Make the promises of the newest step."""
        values = self.rates.values
        usual = np.sqrt(np.where(self._total > 0.0, self._total / np.maximum(self._weight, 1e-9), 1.0))
        root = np.where(np.isnan(self._root), usual, self._root)
        speaks = np.where(self._drift.drifting[:, None], 0, self._chosen)
        floor = self._floor.predict(values, values.shape[1] - 1, self.ask)[:, 0]
        raw, fell = floor.copy(), self._chosen > 0
        for place, name in enumerate(self._names[1:], 1):
            mine = speaks == place
            if mine.any():
                said = self._global(values, mine, raw) if name == Boosting.name else self._own(name, values)
                spoke = mine & ~np.isnan(said).any(axis=2)
                raw[spoke], fell[spoke] = said[spoke], False
        each = (len(self.ask.steps), 1)
        below, roots = self._renewed(), np.tile(usual, each).T
        floor_upper = promised(floor, below, roots)
        margins = self._layer.margins()
        own = promised(raw, margins, np.tile(root, each).T)
        # the floor in a model's place is calibrated with the floor's own errors
        own = np.where(fell[..., None], floor_upper, own)
        shares = self._weighing.shares()
        self._spoke = (self._names, np.where(shares.any(axis=2), speaks, 0))
        upper = mixed(floor_upper, own, shares)
        self._made[self.rates.step] = Made(raw, margins, root, own, floor, usual, below, floor_upper, upper, fell)

    def _renewed(self) -> F64:
        """The floor's margins: one horizon is renewed each step, all of them after a series was added or removed."""
        turn = self.rates.step % len(self.ask.steps)
        if self._floor_margins is None:
            self._floor_margins = self._floor_layer.margins()
        else:
            self._floor_margins = self._floor_margins.copy()
            self._floor_margins[:, turn] = self._floor_layer.margins_at(turn)
        return self._floor_margins

    def _own(self, name: str, values: F64) -> F64:
        """Forecasts [series, horizons, levels] of a model with a state for each of its fitted series."""
        found = np.full((len(values), len(self.ask.steps), len(LEVELS)), np.nan)
        fitted = values[: self._fitted]
        found[: self._fitted] = self._models[name].predict(fitted, fitted.shape[1] - 1, self.ask)[:, 0]
        return found

    def _global(self, values: F64, mine: Bools, last: F64) -> F64:
        """Forecasts of the global model if it is chosen; with many series each of them every few minutes.

        In between a series keeps its forecast, raised to the last value if it is higher.
        """
        rows = np.flatnonzero(mine.any(axis=1))
        turns = -(-len(rows) // MOST_FORESEEN)
        due = rows[rows % turns == self.rates.step % turns]
        before = self._made.get(self.rates.step - 1)
        said = np.full(last.shape, np.nan)
        if turns > 1 and before is not None:
            known = min(len(before.raw), len(said))
            own = np.where(
                before.fell[..., None], np.nan, before.raw
            )  # a forecast of the floor in its place is not its own
            said[:known] = np.maximum(own[:known], last[:known])
        said[due] = self._models[Boosting.name].predict(values[due], values.shape[1] - 1, self.ask)[:, 0]
        return said

    def promises(self) -> F64:
        """The newest promises of all series. Shape [series, horizons, levels]."""
        return self._made[self.rates.step].upper

    def record(self, made_s: float, now_s: float, names: Sequence[str]) -> Forecast | None:
        """The last promises for the services `names`; None before the first."""
        made = self._made.get(self.rates.step)
        if made is None:
            return None
        rows = self.rates.find(names)
        invariant(bool((rows >= 0).all()), "a service is observed before it is queried")
        values = np.full((len(rows), len(self.ask.steps), len(LEVELS)), np.nan)
        there = rows < len(made.upper)
        values[there] = made.upper[rows[there]]
        groups = self._groups(rows)
        names_then, speaks = self._spoke
        spoke = np.zeros(len(rows), np.int64)
        told = rows < len(speaks)
        spoke[told] = speaks[rows[told], 0]
        without = np.isnan(values).any(axis=(1, 2))
        reasons = [
            self._reason(row, bool(there[at]), made.raw) if without[at] else "" for at, row in enumerate(rows.tolist())
        ]
        return Forecast(
            model="bursts",
            made_s=made_s,
            series=tuple(names),
            horizons_s=tuple(steps * STEP_S for steps in self.ask.steps),
            levels=LEVELS,
            values=values,
            kind=self.kind,
            chosen=tuple(names_then[place] for place in spoke.tolist()),
            history=self._known[rows].astype(np.int32),
            coverage=self._delivered.ratio(now_s)[groups],
            outcomes=self._delivered.promises[groups][:, :, -1].astype(np.int32),
            drifting=self._drift.drifting[rows],
            reasons=tuple(reasons),
        )

    def _reason(self, row: int, there: bool, raw: F64) -> str:
        """The reason of an incomplete promise."""
        if not there or not self._known[row]:
            return "no rate was measured yet"
        if np.isnan(raw[row]).any():
            return "the rate was not measured for some minutes"
        return "too few outcomes to promise an upper quantile"

    # --- fitting ----------------------------------------------------------------------------------

    def wanted(self) -> Fit | None:
        """The due fit, on the cadence or on drift; None if none is due. The call starts the next interval."""
        due = self._steps_seen >= self._next_fit
        drifted = self._drift.retrain and self._steps_seen >= self._next_fit - round(RETRAIN_S / STEP_S) * 5 // 6
        if not (due or drifted) or not self.rates.names or self.rates.values.shape[1] < FIRST_FIT_STEPS:
            return None
        self._fits += 1
        self._next_fit = self._steps_seen + min(self._steps_seen, round(RETRAIN_S / STEP_S))
        names = tuple(self.rates.names)
        trial = Trial(names, self._gate, self._champion) if self._gate is not None else None
        return Fit(
            self.kind,
            names,
            self.rates.values.copy(),
            self.ask,
            self._seed + self._fits,
            trial,
            from_s=(self.rates.step - self.rates.values.shape[1] + 1) * STEP_S,
        )

    def adopt(self, fit: DemandFit) -> str | None:
        """Use the models of a finished fit from the next step on; returns the gate's refusal of one of them."""
        asked, fitted = fit.asked, fit.fitted
        invariant(asked.kind == self.kind, "a fit is adopted by the demand that requested it")
        rows = [
            at for at, name in enumerate(asked.names) if at < len(self.rates.names) and self.rates.names[at] == name
        ]
        self._models = {model.name: model for model in fitted.models}
        before = np.array(self._names)[self._chosen]
        self._names = fitted.choice.names
        self._chosen[:] = 0
        self._chosen[rows] = fitted.choice.tried[rows]
        # the record of a series' model is kept where the new one is of its kind
        changed = (np.array(self._names)[self._chosen] != before).any(axis=1)
        doubt = np.zeros((len(changed), len(self.ask.steps), len(LEVELS)))
        doubt[rows] = fitted.choice.doubt[rows]
        self._weighing.begin(np.flatnonzero(changed), doubt[changed])
        others = [at for at in range(len(asked.names)) if at not in set(rows)]
        self._layer = fitted.layer
        self._layer.forget(np.array(others, np.int64))
        self._layer.grow(len(self.rates.names) - len(asked.names))
        self._fitted = len(asked.names)
        self._root[:] = np.nan
        self._root[rows] = fitted.root[rows]
        proof = fitted.proof
        refused = proof is not None and not proof.verdict.passed
        if proof is not None and not refused:
            self._champion = proof.challenger
        # a series stays on its rung where the model that drifted remains in use
        stays = self._chosen[:, 0] == self._names.index(Boosting.name)
        self._drift.forget(np.flatnonzero(~stays) if refused else np.arange(len(self.rates.names)))
        for made in self._made.values():
            made.raw[:] = made.own[:] = np.nan  # promises of previous models do not train the new layer
        return None if proof is None else proof.verdict.refusal(f"boosting for {self.kind}")
