"""The gate: the conditions for a new model to serve.

A challenger is compared with the serving model (the champion) and with the floor under the same conformal layer, on the
same origins. On the primary loss it must beat both in the aggregate, by a paired block bootstrap in at least three
windows of the test time; it may not be worse on any other loss, nor in any group (service class, tenant); it must keep
its nominal coverage, also in its worst window; and its fits must stay within a budget of counted work.

Everything here is a function of arrays of losses; randomness comes from a seeded generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import F64, I64, Bools
from models.bootstrap import Sums, chance_not_behind, coverage_bound, ratio_bounds, window_edges

METRIC_VERSION = "1"
"""Increased when the meaning of a loss or a rule changes: verdicts of two versions are not comparable."""

EVERYONE = "*"
"""The group of all origins."""

FreshRng = Callable[[], np.random.Generator]
"""Creates the generator of the bootstrap anew, so that a repeated fit gets the same verdict."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The losses of one model on the origins of a case, in the order of their times.

    `losses`: by metric, lower is better, [origins]; equal names in the three models of a case. NaN if no model was
    judged on an origin (the same for all models), for example because it has no outcome yet. `covered`: by nominal
    level, True for an outcome within the upper bound, [origins]; ignored at an origin without any loss.
    """

    losses: Mapping[str, F64]
    covered: Mapping[float, Bools]


@dataclass(frozen=True, slots=True)
class CaseLosses:
    """One group at one horizon: challenger, floor and the serving champion, if any, on the same origins.

    `time_s` [origins] is the time of each forecast, non-decreasing; origins of several series may share a time.
    `overlap_s`: the time after it with outcomes still dependent on observations shared by a neighbour (the horizon);
    blocks of the bootstrap are never shorter.
    """

    case: str  # e.g. `bursts 600 s`
    group: str  # a service class or a tenant
    time_s: F64
    overlap_s: float
    challenger: Scores
    floor: Scores
    champion: Scores | None = None


@dataclass(frozen=True, slots=True)
class GateRules:
    """The thresholds of the gate. The figures are those of the reference; none was tuned to a file.

    Rejecting at 5 % in one direction is the usual significance. The required improvement of 2 % keeps models from
    replacing each other without gain.
    """

    primary: tuple[str, ...] = ("pinball_p99", "pinball_p90")  # the first one present is the primary loss
    windows: int = 4
    wins_needed: int = 3  # windows in which the bootstrap must show the challenger ahead
    best_ratio: float = 0.98  # mean of the primary loss over the champion's, at most
    other_ratio: float = 1.0  # mean of any loss over the champion's and the floor's, at most
    behind_ratio: float = 1.05  # of a group or window shown to be worse: above this it blocks
    error_ratio: float = 0.05  # one-sided level of the bootstrap
    resamples: int = 1000
    coverage_slack: Mapping[float, float] = field(default_factory=lambda: {0.9: 0.02, 0.99: 0.007})
    worst_window_coverage: Mapping[float, float] = field(default_factory=lambda: {0.9: 0.82, 0.99: 0.95})
    coverage_windows: int = 8  # equal parts of the test time among which the worst is searched
    group_min_origins: int = 200  # a group with fewer only produces advice
    window_min_origins: int = 100  # of a part of the test time, for a check of its coverage
    max_counted_work: int = 700_000_000  # rows x trees: three minutes of a core at the measured 4 million a second
    advisory_groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rule: value and threshold."""

    rule: str
    passed: bool
    blocking: bool
    value: float
    threshold: float
    words: str


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """All results for one group at one horizon (`group` is `*` for the aggregate)."""

    case: str
    group: str
    origins: int
    passed: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict on a challenger. `passed` is False as soon as one blocking rule fails anywhere."""

    passed: bool
    metric_version: str
    against_champion: bool
    cases: tuple[CaseVerdict, ...]
    reasons: tuple[str, ...]  # every blocking rule that failed, as text; empty when passed

    def refusal(self, model: str) -> str | None:
        """The refusal of `model`, with the first reason and the number of further ones; None if it passed."""
        if self.passed:
            return None
        more = f", and {len(self.reasons) - 1} more" if len(self.reasons) > 1 else ""
        return f"the gate refused {model}: {self.reasons[0]}{more}"


def judge(
    cases: Sequence[CaseLosses],
    counted_work: int,
    rng: np.random.Generator,
    rules: GateRules | None = None,
) -> GateVerdict:
    """Judge a challenger on its cases. One bootstrap seed gives one verdict, independent of the order of the cases.

    Cases of equal name are the groups of one aggregate, judged first. Raises `InvariantError` if the arrays of a case
    are inconsistent.
    """
    rules = rules or GateRules()
    ordered = sorted(cases, key=lambda each: (each.case, each.group))
    verdicts: list[CaseVerdict] = []
    for name in dict.fromkeys(each.case for each in ordered):
        members = [each for each in ordered if each.case == name]
        for each in members:
            _check(each)
        members = [_with_outcome(each) for each in members]
        whole = pooled(members)
        verdicts.append(_judge_case(whole, 1, rules, rng, aggregate=True))
        if len(members) > 1 or members[0].group != EVERYONE:
            verdicts += [_judge_case(each, len(members), rules, rng, aggregate=False) for each in members]
    budget = _budget(counted_work, rules)
    verdicts.append(CaseVerdict("work", EVERYONE, 0, budget.passed, (budget,)))
    if not ordered:
        nothing = Finding("origins", False, True, 0.0, 1.0, "nothing to judge: the data has no test part")
        verdicts.append(CaseVerdict("data", EVERYONE, 0, False, (nothing,)))
    reasons = tuple(
        f"{verdict.case}, {'all' if verdict.group == EVERYONE else verdict.group}: {finding.words}"
        for verdict in verdicts
        for finding in verdict.findings
        if finding.blocking and not finding.passed
    )
    against = bool(ordered) and all(each.champion is not None for each in ordered)
    return GateVerdict(not reasons, METRIC_VERSION, against, tuple(verdicts), reasons)


def pooled(cases: Sequence[CaseLosses]) -> CaseLosses:
    """The groups of one case as one, in order of time. The champion counts only if all groups have it."""
    order = np.argsort(np.concatenate([each.time_s for each in cases]), kind="stable")
    champions = [each.champion for each in cases if each.champion is not None]
    return CaseLosses(
        cases[0].case,
        EVERYONE,
        np.concatenate([each.time_s for each in cases])[order],
        max(each.overlap_s for each in cases),
        _pooled_scores([each.challenger for each in cases], order),
        _pooled_scores([each.floor for each in cases], order),
        _pooled_scores(champions, order) if len(champions) == len(cases) else None,
    )


def _pooled_scores(scores: Sequence[Scores], order: I64) -> Scores:
    first = scores[0]
    return Scores(
        {name: np.concatenate([each.losses[name] for each in scores])[order] for name in first.losses},
        {level: np.concatenate([each.covered[level] for each in scores])[order] for level in first.covered},
    )


def _check(case: CaseLosses) -> None:
    """Raise `InvariantError` if the arrays of a case are inconsistent."""
    count = len(case.time_s)
    where = f"gate: {case.case}, {case.group}"
    invariant(bool(np.all(np.diff(case.time_s) >= 0)), f"{where}: origins are not in the order of time")
    for scores in (case.challenger, case.floor, case.champion):
        if scores is None:
            continue
        invariant(set(scores.losses) == set(case.floor.losses), f"{where}: the models have other metrics")
        invariant(set(scores.covered) == set(case.floor.covered), f"{where}: the models promise other levels")
        for values in (*scores.losses.values(), *scores.covered.values()):
            invariant(len(values) == count, f"{where}: {len(values)} losses on {count} origins")
        for name, losses in scores.losses.items():
            unlike = np.isnan(losses) != np.isnan(case.floor.losses[name])
            invariant(not bool(unlike.any()), f"{where}: {name} was judged on other origins than the floor")


def _with_outcome(case: CaseLosses) -> CaseLosses:
    """The case without the origins judged for no model."""
    known = np.zeros(len(case.time_s), np.bool_)
    for losses in case.floor.losses.values():
        known |= ~np.isnan(losses)
    if known.all():
        return case

    def part(scores: Scores) -> Scores:
        return Scores(
            {name: each[known] for name, each in scores.losses.items()},
            {level: each[known] for level, each in scores.covered.items()},
        )

    champion = None if case.champion is None else part(case.champion)
    return CaseLosses(
        case.case, case.group, case.time_s[known], case.overlap_s, part(case.challenger), part(case.floor), champion
    )


def _judge_case(
    case: CaseLosses, groups: int, rules: GateRules, rng: np.random.Generator, *, aggregate: bool
) -> CaseVerdict:
    """One case; `groups`: the number of groups judged with it."""
    origins = len(case.time_s)
    blocking = aggregate or (origins >= rules.group_min_origins and case.group not in rules.advisory_groups)
    findings: list[Finding] = []
    primary = next((name for name in rules.primary if name in case.challenger.losses), "")
    invariant(bool(primary), f"gate: {case.case}: none of the losses {', '.join(rules.primary)} is there")
    for opponent, scores in (("champion", case.champion), ("floor", case.floor)):
        if scores is None:
            continue
        for metric in case.challenger.losses:
            sums = Sums.of(case.time_s, case.challenger.losses[metric], scores.losses[metric])
            label = f"{metric} against the {opponent}"
            if aggregate:
                first = metric == primary
                most = rules.best_ratio if first and opponent == "champion" else rules.other_ratio
                findings += _must_beat(label, sums, case.overlap_s, most, first, rules, rng)
            else:
                findings.append(_must_not_lose(label, sums, case.overlap_s, groups, blocking, rules, rng))
    for level in case.challenger.covered:
        findings += _coverage(case, level, blocking, rules, rng, aggregate=aggregate)
    passed = all(finding.passed for finding in findings if finding.blocking)
    return CaseVerdict(case.case, case.group, origins, passed, tuple(findings))


def _must_beat(
    label: str,
    sums: Sums,
    overlap_s: float,
    most: float,
    first: bool,
    rules: GateRules,
    rng: np.random.Generator,
) -> list[Finding]:
    """In the mean at most `most`, shown to be behind in no window, and, on the `first` loss, ahead in enough
    windows.
    """
    ratio = sums.ratio
    found = [
        Finding(
            f"{label}: mean",
            bool(ratio <= most),
            True,
            ratio,
            most,
            f"{label}: {ratio:.3f} of its loss, the limit is {most:g}",
        )
    ]
    won = lost = 0
    for begin, end in window_edges(sums.time_s, rules.windows):
        _, high = ratio_bounds(sums.cut(begin, end), overlap_s, rules.error_ratio, rules.resamples, rng)
        won += bool(high < 1.0)
        lost += _is_behind(sums.cut(begin, end), overlap_s, rules.windows, rules, rng)
    if first:
        words = f"{label}: shown ahead in {won} of {rules.windows} windows, {rules.wins_needed} are required"
        enough = won >= rules.wins_needed
        found.append(Finding(f"{label}: windows", enough, True, float(won), float(rules.wins_needed), words))
    found.append(
        Finding(
            f"{label}: lost windows",
            lost == 0,
            True,
            float(lost),
            0.0,
            f"{label}: shown behind in {lost} of {rules.windows} windows",
        )
    )
    return found


def _must_not_lose(
    label: str,
    sums: Sums,
    overlap_s: float,
    groups: int,
    blocking: bool,
    rules: GateRules,
    rng: np.random.Generator,
) -> Finding:
    """A group need not gain; it must not lose."""
    ratio = sums.ratio
    paid = _is_behind(sums, overlap_s, groups, rules, rng)
    words = f"{label}: {ratio:.3f} of its loss, beyond chance; the limit is {rules.behind_ratio:g}"
    return Finding(f"{label}: group", not paid, blocking, ratio, rules.behind_ratio, words)


def _is_behind(sums: Sums, overlap_s: float, tests: int, rules: GateRules, rng: np.random.Generator) -> bool:
    """Worse by more than the tolerance, significantly, at a level shared by `tests` comparisons (Bonferroni)."""
    if not sums.ratio > rules.behind_ratio:
        return False
    return chance_not_behind(sums, overlap_s, rules.resamples, rng) < rules.error_ratio / tests


def _coverage(
    case: CaseLosses,
    level: float,
    blocking: bool,
    rules: GateRules,
    rng: np.random.Generator,
    *,
    aggregate: bool,
) -> list[Finding]:
    """Coverage is as nominal, over all and in the worst part of the test time.

    For a group both count only if the bootstrap shows a violation: its few origins cannot resolve a percent.
    """
    covered = np.asarray(case.challenger.covered[level], float)
    slack = rules.coverage_slack.get(level, 0.02)
    least, most = level - slack, level + slack
    share = float(np.mean(covered)) if len(covered) else float("nan")
    reach = share
    if not aggregate:
        reach = coverage_bound(case.time_s, covered, case.overlap_s, rules.error_ratio, rules.resamples, rng)
    found = [
        Finding(
            f"coverage {level:g}",
            bool(reach >= least),
            blocking,
            share,
            least,
            f"the {level:g} bound held {share:.4f} of the time, at least {least:.3f} is required",
        ),
        Finding(
            f"coverage {level:g}: not too wide",
            bool(share <= most),
            False,
            share,
            most,
            f"the {level:g} bound held {share:.4f} of the time: wider than nominal",
        ),
    ]
    asked = rules.worst_window_coverage.get(level)
    edges = window_edges(case.time_s, rules.coverage_windows)
    parts = [slice(begin, end) for begin, end in edges if end - begin >= rules.window_min_origins]
    if asked is not None and parts:
        worst = min(parts, key=lambda part: float(np.mean(covered[part])))
        share = reach = float(np.mean(covered[worst]))
        if not aggregate:
            reach = coverage_bound(
                case.time_s[worst], covered[worst], case.overlap_s, rules.error_ratio, rules.resamples, rng
            )
        words = (
            f"the {level:g} bound held {share:.3f} of the time in the worst of {len(parts)} parts, at "
            f"least {asked:g} is required"
        )
        found.append(Finding(f"coverage {level:g}: worst window", bool(reach >= asked), blocking, share, asked, words))
    return found


def _budget(counted_work: int, rules: GateRules) -> Finding:
    words = f"fits counted {counted_work:,} rows x trees, at most {rules.max_counted_work:,} are allowed"
    within = counted_work <= rules.max_counted_work
    return Finding("counted work", within, True, float(counted_work), float(rules.max_counted_work), words)
