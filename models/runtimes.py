"""Run-time forecasts in the controller: total time by quantile, corrected as the job and its siblings run.

A job is forecast when it is first seen: opinions of the last similar jobs and of boosting, weighted by their recent
losses (models/opinions.py), are a prior, which the jobs submitted near it correct (models/siblings.py); the result is
promised under calibrated intervals (models/intervals.py). From then on the jobs submitted near it, which end or exceed
their forecasts, keep correcting the prior, under the same margins, and so does its own run time; after an hour of run
time, other jobs that ran as long give its remaining time (models/lasting.py). Until the first job has ended the
forecaster abstains, unless it starts with a model: an unknown job is not backfilled past a reservation.

A fit is work that may run anywhere: `due()` returns it, `adopt()` takes the result (autopilot/worker.py). With a gate a
new model is used only if it passes on the last submitted jobs (models/runtime_proving.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from autopilot.core.model.forecast import LEVELS, Forecasts, RuntimeForecast
from autopilot.core.model.kinds import name_stem
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.snapshot import F64, I64, Bools, ClusterSnapshot, State
from autopilot.core.model.work import holding_mask, progress_s
from models.backtest import FreshRng
from models.censoring import completion_weights
from models.hazard_index import Hazards
from models.hazard_proving import HazardFit, HazardWork, StoredCounts
from models.intervals import Intervals, groups_of
from models.lasting import Lasting
from models.opinions import KIND, SIBLINGS, Mixer, add_boosted, corrected, ordered, recent_opinions
from models.recent import F32, Asked, Recent, kins_of, taken
from models.runtime_boosting import LEAST_ROWS, Boosted, BoostingRules, fit_boosted
from models.runtime_features import feature_names, runtime_features
from models.runtime_proving import WINDOW_PART, EndedJob, Proof, Trial, parted, proved
from models.siblings import Siblings

SHORTEST_S = 1.0
"""Run times below a second are no work: such a job is ignored."""

MISSING_S = 3600.0
"""How long a job may be missing from the snapshots before it is dropped: collectors have gaps."""

TABLE_ROWS = 256

ASKED = ("cpu_milli", "memory_mib", "gpu_milli", "priority", "limit_s")
"""Columns of the workload table with further requests of a job; of the first three 0 means not stated."""

FEATURES = feature_names(ASKED)


@dataclass(slots=True)
class Job:
    """The state of one job that has not ended. `row` is its place in the table of forecasts."""

    row: int
    tenant: str
    kins: tuple[Hashable, ...]
    turn: I64
    submit_s: float
    features: F64
    opinions: F64
    candidates: F32
    held: F64  # without and with the correction by siblings
    margin: F64  # in logs, the calibration margin at each level; 0 with too little data


@dataclass(frozen=True, slots=True)
class FitWork:
    """Everything that one fit looks at; it may be run elsewhere, at any time.

    With a `trial` the new model has to pass it. The jobs that are fitted on were submitted from `from_s` on, and had
    ended by `to_s`.
    """

    features: F64
    log_s: F64
    weight: F64
    rules: BoostingRules
    seed: int
    trial: Trial | None = None
    from_s: float = 0.0
    to_s: float = 0.0

    def run(self) -> Fit:
        """Fit. A pure function of the work: the same work gives the same fit."""
        boosted = fit_boosted(self.features, self.log_s, self.weight, LEVELS, self.rules, self.seed)
        if self.trial is None:
            return Fit(boosted)
        proof = None if boosted is None else proved(boosted, self.trial)
        passed = proof is not None and proof.verdict.passed
        digest = sha256(self.features.tobytes() + self.log_s.tobytes() + self.weight.tobytes()).hexdigest()
        asked = replace(self, features=self.features[:0], log_s=self.log_s[:0], weight=self.weight[:0], trial=None)
        return Fit(boosted if passed else self.trial.champion, proof, asked, digest)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit gave: the model that is to speak, after a trial the new one if it passed, else the champion.

    `proof`: what the gate found of the new one, if one was fitted and tried. `asked` is what was wanted then, its rows
    left out; `digest` is theirs.
    """

    boosted: Boosted | None
    proof: Proof | None = None
    asked: FitWork | None = None
    digest: str = ""


class Runtimes:
    """Forecaster of run times by recent jobs, boosting and siblings."""

    name = "predicted"

    def __init__(
        self,
        rules: Forecasting | None = None,
        seed: int = 0,
        *,
        gate: FreshRng | None = None,
        champion: Boosted | None = None,
        hazards: StoredCounts | None = None,
    ) -> None:
        """`gate` makes the generator of its bootstrap; `champion` and `hazards` are what served before this run."""
        self.rules, self._seed, self._gate = rules or Forecasting(), seed, gate
        self._recent, self._mixer, self._with_siblings = Recent(), Mixer(), Mixer(SIBLINGS)
        self._siblings, self._lasting = Siblings(), Lasting()
        self._intervals = Intervals()
        self.hazards = Hazards(self.rules, gate=gate, champion=hazards)
        self._jobs: dict[str, Job] = {}
        self._missing: dict[str, float] = {}  # jobs missing from the last snapshots, and since when
        self._log_total = np.full((TABLE_ROWS, len(LEVELS)), np.nan)
        self._history = np.zeros(TABLE_ROWS, np.int32)
        self._free = list(range(TABLE_ROWS - 1, 0, -1))  # row 0 stays empty: no forecast
        self._fit = Fit(champion)
        self._ended: list[EndedJob] = []  # in order of their end
        self._ran_s = np.zeros(0)  # how long each of the running jobs has run
        self._running: dict[str, int] = {}  # their places there
        self._fitted_rows, self._fitted_s = 0, -np.inf

    # --- learning ---------------------------------------------------------------------------

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Learn from the jobs that the snapshot shows as ended, and from those that exceeded their forecasts."""
        work = snapshot.workloads
        for place in np.flatnonzero((work.state >= State.SUCCEEDED) & (work.service < 0)).tolist():
            self._end(str(work.id[place]), float(work.served_s[place]), now_s)
        running = np.flatnonzero(holding_mask(work) & (work.service < 0))
        self._ran_s = progress_s(work, running.astype(np.int32), now_s)[1]
        names = work.id[running].tolist()
        self._running = {name: place for place, name in enumerate(names)}
        self._intervals.ran(names, self._ran_s)
        self._intervals.settle(now_s)
        self._siblings.ran(names, self._ran_s)
        self._lasting.ran(names, self._ran_s)
        self.hazards.update(now_s, snapshot)

    def _miss(self, names: set[str], now_s: float) -> None:
        """Drop jobs that were missing for `MISSING_S`: withdrawn, or ended unobserved."""
        missing = {name: self._missing.get(name, now_s) for name in self._jobs if name not in names}
        self._missing = {name: since_s for name, since_s in missing.items() if now_s - since_s < MISSING_S}
        for name in [each for each in missing if each not in self._missing]:
            self._end(name, float("nan"), now_s)

    def _end(self, name: str, ran_s: float, now_s: float) -> None:
        job = self._jobs.pop(name, None)
        if job is None:
            return
        self._log_total[job.row] = np.nan
        self._free.append(job.row)
        self._lasting.end(name, ran_s)
        if not ran_s >= SHORTEST_S:  # NaN too
            self._intervals.forget(name)
            self._siblings.end(name, None)
            return
        log_s = float(np.log(ran_s))
        self._intervals.end(name, ran_s, now_s)
        self._siblings.end(name, log_s)
        self._recent.end(job.kins, job.turn, job.submit_s, log_s, now_s)
        for mixer, held in ((self._mixer, job.opinions), (self._with_siblings, job.held)):
            mixer.learn(int(mixer.rows([job.kins[KIND]])[0]), held, log_s)
        self._ended.append(
            EndedJob(job.tenant, job.kins[KIND], job.submit_s, now_s, log_s, job.features, job.opinions, job.candidates)
        )
        if len(self._ended) > 2 * self.rules.most_rows:
            del self._ended[: self.rules.most_rows]
            self._fitted_rows = max(self._fitted_rows - self.rules.most_rows, 0)

    # --- fitting ----------------------------------------------------------------------------

    def due(self, now_s: float) -> FitWork | HazardWork | None:
        """The next fit when one is due, that of boosting first."""
        return self._boosting_due(now_s) or self.hazards.due(now_s)

    def _boosting_due(self, now_s: float) -> FitWork | None:
        """A fit of boosting: there are many more jobs than at the last one, or it is old."""
        rows, rules = len(self._ended), self.rules
        grown = rows >= self._fitted_rows * (1.0 + rules.growth_ratio)
        aged = rows > self._fitted_rows and now_s - self._fitted_s >= rules.retrain_s
        least = LEAST_ROWS if self._gate is None else LEAST_ROWS / (1.0 - WINDOW_PART)
        if rows < least or not (grown or aged):
            return None
        self._fitted_rows, self._fitted_s = rows, now_s
        known, running_s, to_s = self._ended[-rules.most_rows :], self._ran_s, now_s
        trial = None
        if self._gate is not None:
            parts = parted(known, running_s, now_s)
            known, running_s, to_s = list(parts.known), parts.running_s, parts.window_s
            trial = Trial(parts.window, self._gate, self._fit.boosted)
            if len(known) < LEAST_ROWS:  # too many of them ran into the window
                return None
        log_s = np.array([job.log_s for job in known])
        spent_s = np.concatenate([np.exp(log_s), running_s])
        weight = completion_weights(spent_s, np.arange(len(spent_s)) < len(log_s))[: len(log_s)]
        features = np.stack([job.features for job in known])
        boosting = BoostingRules(trees=rules.trees, most_rows=rules.most_rows)
        from_s = min(job.submit_s for job in known)
        return FitWork(features, log_s, weight, boosting, self._seed, trial, from_s, to_s)

    def adopt(self, fit: Fit | HazardFit) -> str | None:
        """Forecast with `fit` from now on (a job with a forecast keeps it as its prior); returns why the gate refused a
        new model.
        """
        if isinstance(fit, HazardFit):
            return self.hazards.adopt(fit)
        self._fit = fit
        return None if fit.proof is None else fit.proof.verdict.refusal("boosting for run times")

    # --- forecasting ------------------------------------------------------------------------

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """Quantiles of the total run time of every workload; replicas of services and unknown jobs abstain."""
        work = snapshot.workloads
        names = work.id.tolist()
        known = self._jobs
        fresh = [
            place
            for place, name in enumerate(names)
            if name not in known and work.service[place] < 0 and work.state[place] < State.SUCCEEDED
        ]
        if fresh:
            self._meet(np.array(fresh), names, snapshot)
        if len(known) > np.count_nonzero((work.service < 0) & (work.state < State.SUCCEEDED)):
            self._miss(set(names), now_s)
        else:
            self._missing.clear()
        beside = self._siblings.beside_news()
        renewed = self._calibrated(self._siblings.renewed())
        renewed.update(self._lasting.said(beside))
        for name, log_total in renewed.items():
            self._log_total[known[str(name)].row] = log_total
        rows = np.fromiter((known[name].row if name in known else 0 for name in names), np.int64, len(names))
        total_s = np.exp(self._log_total[rows])
        certain = ~np.isnan(total_s[:, 0])
        index = self.hazards.index_per_s(now_s, snapshot)
        return Forecasts(RuntimeForecast(self.name, now_s, LEVELS, total_s, certain, self._history[rows], index))

    def _calibrated(self, said: Mapping[Hashable, F64]) -> dict[Hashable, F64]:
        """The corrections by siblings, with the margins of the job's submission: log quantiles, none below the run time
        so far.
        """
        if not said:
            return {}
        names = [str(name) for name in said]
        margin = np.stack([self._jobs[name].margin for name in names])
        ran_s = np.append(self._ran_s, 0.0)[[self._running.get(name, -1) for name in names]]
        log_total = np.maximum(
            ordered(np.stack(list(said.values())) + margin), np.log(np.maximum(ran_s, 1e-9))[:, None]
        )
        return dict(zip(said, log_total, strict=True))

    def _meet(self, places: I64, names: list[str], snapshot: ClusterSnapshot) -> None:
        """Forecast new jobs, in one batch."""
        asked = asked_of(snapshot, places)
        order = np.argsort(asked.submit_s, kind="stable")
        kins = [
            kins_of(asked.tenant[number], asked.user[number], asked.stem[number], float(asked.gpus[number]))
            for number in order.tolist()
        ]
        # in one call: kins that were not used recently are dropped between calls, and rows renumbered
        rows = self._recent.slots([each for kin in kins for each in kin]).reshape(len(kins), -1)
        turns = []
        kept = self._recent.gather(rows, asked.submit_s[order])
        for number, slots in zip(order.tolist(), rows, strict=True):
            turns.append(self._recent.submit(slots, float(asked.submit_s[number])))
        asked = taken(asked, order)
        opinions, candidates = recent_opinions(kept)
        features = runtime_features(asked, kept, opinions, candidates)
        if self._fit.boosted is not None:
            add_boosted(opinions, candidates, self._fit.boosted.predict(features))
        kinds = [kin[KIND] for kin in kins]
        prior = self._mixer.mix(self._mixer.rows(kinds), opinions)
        sure = np.asarray(~np.isnan(prior).any(axis=1))
        ordered_names = [names[place] for place in places[order].tolist()]
        raw, held = corrected(
            self._with_siblings,
            kinds,
            prior,
            self._posterior(ordered_names, kins, asked.submit_s, prior, sure),
        )
        group = groups_of(raw)
        given, margin = self._intervals.apply(raw, group)
        for number, name in enumerate(ordered_names):
            row, submit_s = self._new_row(), float(asked.submit_s[number])
            self._jobs[name] = Job(
                row,
                str(asked.tenant[number]),
                kins[number],
                turns[number],
                submit_s,
                features[number],
                opinions[number],
                candidates[number],
                held[number],
                np.where(np.isfinite(margin[number]), margin[number], 0.0),
            )
            self._log_total[row] = given[number]
            self._history[row] = int(kept.count[number, -1])
            self._lasting.add(name, kins[number], submit_s)
            if sure[number]:
                self._intervals.add(name, raw[number], margin[number], int(group[number]))

    def _posterior(
        self, names: list[str], kins: list[tuple[Hashable, ...]], submit_s: F64, prior: F64, sure: Bools
    ) -> F64:
        """The correction by siblings of the `prior` of new jobs; NaN without information. Shape of `prior`."""
        for name, kin, at_s in zip(names, kins, submit_s.tolist(), strict=True):
            self._siblings.add(name, kin[0], at_s)
        answer = np.full(prior.shape, np.nan)
        if sure.any():
            some = np.flatnonzero(sure)
            chosen = [names[place] for place in some.tolist()]
            self._siblings.foresee(chosen, np.exp(prior[sure]))
            said = self._siblings.said(chosen)
            for place, name in zip(some.tolist(), chosen, strict=True):
                answer[place] = said.get(name, answer[place])
        return answer

    def _new_row(self) -> int:
        if not self._free:
            size = len(self._log_total)
            self._log_total = np.vstack([self._log_total, np.full((size, len(LEVELS)), np.nan)])
            self._history = np.concatenate([self._history, np.zeros(size, np.int32)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()


def asked_of(snapshot: ClusterSnapshot, places: I64) -> Asked:
    """The attributes of the workloads at `places`."""
    work, tenants = snapshot.workloads, snapshot.names.tenants
    tenant = np.empty(len(places), object)
    tenant[:] = [tenants[code] if 0 <= code < len(tenants) else "" for code in work.tenant[places].tolist()]
    stem, user = np.empty(len(places), object), np.empty(len(places), object)
    stem[:] = [name_stem(str(name)) for name in work.name[places].tolist()]
    user[:] = [str(name) for name in work.user[places].tolist()]
    other = np.column_stack([np.asarray(getattr(work, name)[places], float) for name in ASKED])
    other[:, :3] = np.where(other[:, :3] > 0, other[:, :3], np.nan)
    return Asked(tenant, user, stem, work.gpus[places].astype(float), work.submit_s[places], other)
