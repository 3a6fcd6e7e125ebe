"""The gate of hazards: do tenant and width say more than all jobs together?

Judged are the last submitted jobs. The challenger is counted as of the moment when the first of them was submitted, the
floor from the same jobs without tenant and width; the champion is the stored version that serves. The loss is the
continuous ranked probability score of the log run time at submission (Gneiting and Raftery 2007), on the edges of the
bins, which is proper and positive. Coverage is that of the 0.9 bound under the conformal layer. The rules are those of
models/backtest.py; the verdict is on the counts, which go on after it.

What is stored are all counts of the moment of the fit: they begin the next controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, Bools
from models.backtest import CaseLosses, FreshRng, GateRules, GateVerdict, Scores, judge
from models.hazards import BINS, EDGES_S, Counts, Groups, bins_of, lasting_ratio, total_quantiles_s
from models.rehearsal import Given, Promises, calibrated
from models.runtime_proving import MOST_JUDGED, WARM_PART, WINDOW_PART

MODEL = "hazards"
LOSS = "crps_log"
P90 = LEVELS.index(0.9)
RULES = GateRules(primary=(LOSS,))
SCHEMA = ("tenant", "width_milli", "age_s")
Pair = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Followed:
    """Jobs followed from the age `entry_s` to `age_s`, which they reached at `at_s`; `ended` if they ended then.

    All of one length. `pairs` are tenant and width in thousandths of a GPU.
    """

    pairs: tuple[Pair, ...]
    submit_s: F64
    entry_s: F64
    age_s: F64
    at_s: F64
    ended: Bools


@dataclass(frozen=True, slots=True)
class StoredCounts:
    """Counts as the registry keeps them, faded to `counted_s`. Both columns are [pairs, bins]."""

    pairs: tuple[Pair, ...]
    ended: F64
    risk_s: F64
    ended_jobs: int
    counted_s: float

    def content(self) -> dict[str, Any]:
        """Plain values and arrays."""
        return {
            "model": MODEL,
            "edges_s": EDGES_S.copy(),
            "tenants": [tenant for tenant, _ in self.pairs],
            "widths": np.array([width for _, width in self.pairs], np.int64),
            "ended": self.ended,
            "risk_s": self.risk_s,
            "ended_jobs": self.ended_jobs,
            "counted_s": self.counted_s,
        }

    def groups(self) -> Groups:
        """Groups beginning with these counts."""
        groups = Groups()
        groups.restore(self.pairs, self.ended, self.risk_s, self.ended_jobs, self.counted_s)
        return groups


def stored_counts(content: Mapping[str, Any]) -> StoredCounts:
    """The counts of a stored artifact. Raises `InputError` if they are unusable here."""
    if content.get("model") != MODEL:
        raise InputError("not a model of hazards")
    if not np.array_equal(content["edges_s"], EDGES_S):
        raise InputError("its age bins are others than those of this version; fit it again")
    pairs = tuple(zip((str(name) for name in content["tenants"]), content["widths"].tolist(), strict=True))
    ended, risk_s = np.asarray(content["ended"], float), np.asarray(content["risk_s"], float)
    if ended.shape != (len(pairs), BINS) or risk_s.shape != ended.shape or len(set(pairs)) != len(pairs):
        raise InputError("its counts do not match its tenants and widths; fit it again")
    for column in (ended, risk_s):
        if not (np.isfinite(column).all() and (column >= 0.0).all()):
            raise InputError("a count is negative or not finite; fit it again")
    return StoredCounts(pairs, ended, risk_s, int(content["ended_jobs"]), float(content["counted_s"]))


@dataclass(frozen=True, slots=True)
class HazardWork:
    """The full input of one fit; it may be run elsewhere, at any time. `now_s`: the time of the request."""

    followed: Followed
    stored: StoredCounts
    champion: StoredCounts | None
    rng: FreshRng
    now_s: float

    def run(self) -> HazardFit:
        """Judge. A pure function of the work."""
        jobs = self.followed
        digest = sha256(jobs.submit_s.tobytes() + jobs.age_s.tobytes() + jobs.ended.tobytes()).hexdigest()
        first_s = float(jobs.submit_s.min()) if len(jobs.submit_s) else self.now_s
        return HazardFit(
            self.stored, proved(jobs, self.champion, self.rng), digest, first_s, self.now_s, len(jobs.pairs)
        )


@dataclass(frozen=True, slots=True)
class HazardFit:
    """Counts to store, the verdict on them, and the data behind it: digest, first and last time, and jobs."""

    stored: StoredCounts
    verdict: GateVerdict
    digest: str
    from_s: float
    to_s: float
    rows: int

    @property
    def work(self) -> int:
        """Counted work: jobs x bins."""
        return self.rows * BINS


def proved(jobs: Followed, champion: StoredCounts | None, rng: FreshRng) -> GateVerdict:
    """The verdict on counts by tenant and width. Without ended jobs in the window it refuses."""
    work = len(jobs.pairs) * BINS
    ended = np.flatnonzero(jobs.ended)
    if not len(ended):
        return judge((), work, rng(), RULES)
    size = min(max(int(WINDOW_PART * len(ended)), 1), MOST_JUDGED)
    window_s = float(np.sort(jobs.submit_s[ended])[-size])
    before = jobs.submit_s < window_s
    # as if each had run without a stop until its end
    age_s = np.clip(jobs.age_s - np.maximum(jobs.at_s - window_s, 0.0), jobs.entry_s, jobs.age_s)
    done = jobs.ended & (jobs.at_s < window_s)
    window = ended[jobs.submit_s[ended] >= window_s]
    window = window[np.argsort(jobs.submit_s[window], kind="stable")]
    asked = [jobs.pairs[row] for row in window.tolist()]
    own = [jobs.pairs[row] for row in np.flatnonzero(before).tolist()]
    everyone = [("", 1)]
    alone, whole = (
        _counted(pairs, jobs.entry_s[before], age_s[before], done[before]) for pairs in (own, everyone * len(own))
    )
    made_s, log_s = jobs.submit_s[window], np.log(np.maximum(jobs.age_s[window], 1.0))
    promises = Promises(made_s, jobs.at_s[window] - jobs.age_s[window], log_s)
    judged = slice(int(WARM_PART * len(window)), None)
    ours = _scores(_hazards(alone, asked), promises, judged)
    floor = _scores(_hazards(whole, everyone * len(asked)), promises, judged)
    theirs = None if champion is None else _scores(_hazards(champion.groups(), asked), promises, judged)
    return judge(_cases(asked[judged], made_s[judged], log_s[judged], ours, floor, theirs), work, rng(), RULES)


def _counted(pairs: list[Pair], entry_s: F64, age_s: F64, ended: Bools) -> Groups:
    groups = Groups()
    groups.count(np.array([groups.row_of(*pair) for pair in pairs], np.int64), entry_s, age_s, ended.astype(float))
    return groups


def _hazards(groups: Groups, asked: list[Pair]) -> F64:
    """Hazards of the pairs `asked` [jobs, bins]."""
    rows = np.array([groups.row_of(*pair) for pair in asked], np.int64)
    none = np.empty(0)
    counts: Counts = groups.with_open(np.empty(0, np.int64), none, none)
    return counts.hazards()[rows]


def _scores(hazard: F64, promises: Promises, judged: slice) -> Scores:
    """Loss and coverage of each judged job, at its submission."""
    young = np.zeros(len(hazard))
    done = 1.0 - lasting_ratio(hazard, young)[:, 1:]  # by the lower edge of each further bin
    came = bins_of(np.exp(promises.log_s))[:, None] < np.arange(1, BINS)
    step = np.diff(np.log(np.maximum(EDGES_S, EDGES_S[1] / 2.0)))
    loss = ((done - came) ** 2) @ step
    bound = calibrated(promises, Given(np.log(np.maximum(total_quantiles_s(hazard, young, LEVELS), 1.0))))[:, P90]
    return Scores({LOSS: loss[judged]}, {0.9: np.asarray(promises.log_s <= bound)[judged]})


def _cases(
    asked: list[Pair], made_s: F64, log_s: F64, ours: Scores, floor: Scores, theirs: Scores | None
) -> list[CaseLosses]:
    """A case for each tenant."""
    typical_s = float(np.median(np.exp(log_s))) if len(log_s) else 0.0
    owners = np.array([tenant for tenant, _ in asked], object)

    def part(scores: Scores, mine: Bools) -> Scores:
        return Scores({LOSS: scores.losses[LOSS][mine]}, {0.9: scores.covered[0.9][mine]})

    cases = []
    for tenant in sorted(set(owners.tolist())):
        mine = owners == tenant
        cases.append(
            CaseLosses(
                MODEL,
                str(tenant),
                made_s[mine],
                typical_s,
                part(ours, mine),
                part(floor, mine),
                None if theirs is None else part(theirs, mine),
            )
        )
    return cases
