"""The registry behind the running controller: what passed the gate is stored and serves, what did not is stored with why.

It works where the fit does, in the worker's thread: the loop waits for no disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autopilot.app.gate import Candidate, write_verdict
from autopilot.core.forecast import REQUESTS
from autopilot.registry import Registry, RegistryError
from models.backtest import EVERYONE, GateRules, GateVerdict
from models.boosting import Boosting
from models.bursts import STEP_S, DemandFit

KIND = "bursts"
BY = "controller"


class Promoter:
    """Stores the fits of the controller: a `Keep` of its worker (autopilot/worker.py)."""

    def __init__(self, registry: Registry) -> None:
        """Take the version that serves as the champion; one that cannot be used is passed over, see `notes`."""
        self._registry = registry
        served = registry.serve(KIND, lambda _, content: _problem_of(content))
        self.notes = tuple(f"passed over {name[:12]}: {problem}" for name, problem in served.refused)
        self.champion = Boosting.from_content(served.content) if served.content is not None else None
        self._version = served.manifest.version if served.manifest is not None else ""
        self._current = registry.pointer(
            KIND
        ).current  # other than that version where it had to be passed over

    def __call__(self, owner: str, result: Any) -> str:
        """Store a fit that was judged; why it must not be used, "" when it may be.

        Only models of requests are stored: nothing is decided by tokens yet.
        """
        if not isinstance(result, DemandFit) or result.asked.kind != REQUESTS or result.fitted.proof is None:
            return ""
        asked, proof = result.asked, result.fitted.proof
        data = {
            "name": "the recent window of the controller", "digest": result.digest, "from_s": asked.from_s,
            "to_s": asked.from_s + result.fitted.steps * STEP_S, "rows": proof.challenger.rows,
        }  # fmt: skip
        setting = {
            "target": "peak",
            "horizons_s": [steps * STEP_S for steps in asked.ask.steps],
            "step_s": STEP_S,
        }
        candidate = Candidate(
            proof.challenger.content(), data, proof.challenger.features, {"seed": asked.seed, **setting},
            _scores(proof.verdict), result.fitted.counted_work, asked.seed, BY,
        )  # fmt: skip
        try:
            version, run, _ = write_verdict(
                KIND, self._registry, proof.verdict, candidate, self._version, data, setting, GateRules()
            )
            if not proof.verdict.passed:
                return ""  # what is adopted then is without it
            why = f"passed the gate against {self._version[:12] or 'the simple models'}, run {run}"
            self._registry.promote(KIND, version, by=BY, why=why, expected=self._current)
        except RegistryError as error:
            return f"it is not used, for it could not be stored: {error}"
        self._version = self._current = version
        return ""


def _problem_of(content: dict[str, Any]) -> str:
    try:
        Boosting.from_content(content)
    except Exception as error:  # noqa: BLE001 - whatever a foreign content breaks on, it cannot serve
        return str(error)
    return ""


def _scores(verdict: GateVerdict) -> dict[str, float]:
    """What the gate measured over all services."""
    return {
        f"{case.case} {finding.rule}": round(finding.value, 6)
        for case in verdict.cases
        for finding in case.findings
        if case.group == EVERYONE and np.isfinite(finding.value)
    }
