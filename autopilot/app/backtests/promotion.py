"""The registry behind the running controller: stores and serves models passed by the gate; stores refused ones with the
reason.

It runs beside the fit, in the worker's thread: the control loop never waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from autopilot.app.backtests.gate import Candidate, write_verdict
from autopilot.core.model.forecast import REQUESTS
from autopilot.registry import Manifest, Registry, RegistryError
from models.backtest import EVERYONE, GateRules, GateVerdict
from models.boosting import Boosting
from models.burst_demand import STEP_S, DemandFit, ask_of
from models.hazard_proving import SCHEMA, HazardFit, stored_counts
from models.proving import Proof
from models.runtime_boosting import content_of, stored_boosted
from models.runtime_proving import Proof as RuntimeProof
from models.runtimes import FEATURES, Fit, FitWork

BURSTS, RUNTIMES, HAZARDS = "bursts", "runtimes", "hazards"
BY = "controller"
WINDOW = "the recent window of the controller"
Model = TypeVar("Model")

SIMPLE = {BURSTS: "the simple models", RUNTIMES: "the last similar jobs", HAZARDS: "all jobs together"}
"""The fallback of a kind without a serving model."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a fit, as the registry keeps it; `setting` holds the options of the fit."""

    kind: str
    candidate: Candidate
    verdict: GateVerdict
    setting: dict[str, Any]


class Promoter:
    """Stores the fits of the controller: a `Keep` of its worker (autopilot/worker.py)."""

    def __init__(self, registry: Registry) -> None:
        """Load the serving versions as champions; an unusable one is skipped, see `notes`."""
        self._registry = registry
        self._version: dict[str, str] = {}
        self._current: dict[str, str] = {}  # differs from that version if it was skipped
        self.notes: tuple[str, ...] = ()
        self.champion = self._serving(BURSTS, lambda _, content: Boosting.from_content(content, ask_of()))
        self.boosted = self._serving(
            RUNTIMES, lambda manifest, content: stored_boosted(content, manifest.feature_schema, FEATURES)
        )
        self.hazards = self._serving(HAZARDS, lambda _, content: stored_counts(content))

    def _serving(self, kind: str, read: Callable[[Manifest, dict[str, Any]], Model]) -> Model | None:
        """The serving model of a kind, None without one. `read` raises for an unusable one."""

        def problem_of(manifest: Manifest, content: dict[str, Any]) -> str:
            try:
                read(manifest, content)
            except Exception as error:  # noqa: BLE001 - whatever a foreign content breaks on, it cannot serve
                return str(error)
            return ""

        served = self._registry.serve(kind, problem_of)
        self.notes += tuple(f"skipped {name[:12]}: {problem}" for name, problem in served.refused)
        self._version[kind] = served.manifest.version if served.manifest is not None else ""
        self._current[kind] = self._registry.pointer(kind).current
        if served.manifest is None or served.content is None:
            return None
        return read(served.manifest, served.content)

    def __call__(self, owner: str, result: Any) -> str:
        """Store a judged fit; returns the reason against its use, "" without one."""
        judged = _judged(result)
        if judged is None:
            return ""
        kind, candidate = judged.kind, judged.candidate
        champion = self._version[kind]
        try:
            version, run, _ = write_verdict(
                kind, self._registry, judged.verdict, candidate, champion, candidate.data, judged.setting, GateRules()
            )
            if not judged.verdict.passed:
                return ""  # the adopted fit does not contain it
        except RegistryError as error:
            return f"not used, because it could not be stored: {error}"
        why = f"passed the gate against {champion[:12] or SIMPLE[kind]}, run {run}"
        try:
            self._registry.promote(kind, version, by=BY, why=why, expected=self._current[kind])
        except RegistryError as error:
            return (
                f"stored as {version[:12]} but not used: {error}. This controller loads promotions and "
                "rollbacks made by others at its next start"
            )
        self._version[kind] = self._current[kind] = version
        return ""


def _judged(result: Any) -> Judged | None:
    """The part of a fit for the registry; None if nothing was judged, or nothing belongs into the registry.

    For demand only models of requests are kept: no decision uses tokens yet.
    """
    if isinstance(result, DemandFit) and result.asked.kind == REQUESTS and result.fitted.proof is not None:
        return _of_demand(result, result.fitted.proof)
    if isinstance(result, Fit) and result.proof is not None and result.asked is not None:
        return _of_run_times(result.digest, result.asked, result.proof)
    return _of_hazards(result) if isinstance(result, HazardFit) else None


def _of_demand(fit: DemandFit, proof: Proof) -> Judged:
    asked = fit.asked
    data = {
        "name": WINDOW,
        "digest": fit.digest,
        "from_s": asked.from_s,
        "to_s": asked.from_s + fit.fitted.steps * STEP_S,
        "rows": proof.challenger.rows,
    }
    setting = {"target": "peak", "horizons_s": [steps * STEP_S for steps in asked.ask.steps], "step_s": STEP_S}
    candidate = Candidate(
        proof.challenger.content(),
        data,
        proof.challenger.features,
        {"seed": asked.seed, **setting},
        _scores(proof.verdict),
        fit.fitted.counted_work,
        asked.seed,
        BY,
    )
    return Judged(BURSTS, candidate, proof.verdict, setting)


def _of_run_times(digest: str, asked: FitWork, proof: RuntimeProof) -> Judged:
    data = {
        "name": WINDOW,
        "digest": digest,
        "from_s": asked.from_s,
        "to_s": asked.to_s,
        "rows": proof.challenger.rows,
    }
    setting = {"target": "run time"}
    candidate = Candidate(
        {"model": "runtimes", "boosted": content_of(proof.challenger)},
        data,
        FEATURES,
        {"seed": asked.seed, **asdict(asked.rules), **setting},
        _scores(proof.verdict),
        proof.challenger.work,
        asked.seed,
        BY,
    )
    return Judged(RUNTIMES, candidate, proof.verdict, setting)


def _of_hazards(fit: HazardFit) -> Judged:
    data = {"name": WINDOW, "digest": fit.digest, "from_s": fit.from_s, "to_s": fit.to_s, "rows": fit.rows}
    setting = {"target": "hazard by age"}
    scores = _scores(fit.verdict)
    candidate = Candidate(fit.stored.content(), data, SCHEMA, setting, scores, fit.work, 0, BY)
    return Judged(HAZARDS, candidate, fit.verdict, setting)


def _scores(verdict: GateVerdict) -> dict[str, float]:
    """The scores of the gate over all services, or tenants."""
    return {
        f"{case.case} {finding.rule}": round(finding.value, 6)
        for case in verdict.cases
        for finding in case.findings
        if case.group == EVERYONE and np.isfinite(finding.value)
    }
