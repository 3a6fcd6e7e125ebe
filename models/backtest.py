"""The gate: what a new model must show before it may serve.

A challenger is compared with the model that serves (the champion) and with the floor under the same
conformal layer, on the same origins. On the loss that decisions rest on it must beat both in the aggregate, by
a paired block bootstrap in at least three windows of the test time; on no other loss may it be worse, nor in
any group (service class, tenant); it must keep its promised coverage, in its worst window too; and its fits
must stay inside a budget of counted work.

Everything here is a function of arrays of losses; randomness arrives as a seeded generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import F64, I64, Bools
from models.bootstrap import Sums, chance_not_behind, coverage_bound, ratio_bounds, window_edges

METRIC_VERSION = "1"
"""Changes when a loss or a rule means something else: verdicts of two versions are not comparable."""

EVERYONE = "*"
"""The group that stands for all."""

FreshRng = Callable[[], np.random.Generator]
"""Makes the generator of the bootstrap anew, so that a fit that is run again gets the same verdict."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How one model did on the origins of a case, in the order of their times.

    `losses`: by metric, lower is better, [origins]; equal names in the three models of a case. NaN where an
    origin was not judged by anyone (the same for all models), because its outcome has not come, say.
    `covered`: by promised level, whether what came stayed within the upper bound, [origins]; what stands at an
    origin without any loss is not looked at.
    """

    losses: Mapping[str, F64]
    covered: Mapping[float, Bools]


@dataclass(frozen=True, slots=True)
class CaseLosses:
    """One group at one horizon: challenger, floor and, where one serves, champion on the same origins.

    `time_s` [origins] is when each forecast was made, non-decreasing; origins of several series may share
    a time. `overlap_s`: how long after it an outcome still depends on what a neighbour saw (the horizon);
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
    """What a challenger must show. The figures are those of the reference; none was tuned to a file.

    Rejecting at 5 % in one direction is the usual significance. That a challenger must be 2 % better keeps
    models from replacing each other without gain.
    """

    primary: tuple[str, ...] = ("pinball_p99", "pinball_p90")  # the first that is there: what is planned on
    windows: int = 4
    wins_needed: int = 3  # windows in which the bootstrap must show the challenger ahead
    best_ratio: float = 0.98  # mean of the primary loss over the champion's, at most
    other_ratio: float = 1.0  # mean of any loss over the champion's and the floor's, at most
    behind_ratio: float = 1.05  # of a group or window that is shown to be worse: above this it blocks
    error_ratio: float = 0.05  # one-sided level of the bootstrap
    resamples: int = 1000
    coverage_slack: Mapping[float, float] = field(default_factory=lambda: {0.9: 0.02, 0.99: 0.007})
    worst_window_coverage: Mapping[float, float] = field(default_factory=lambda: {0.9: 0.82, 0.99: 0.95})
    coverage_windows: int = 8  # equal parts of the test time among which the worst is sought
    group_min_origins: int = 200  # a group with fewer is only advised on
    window_min_origins: int = 100  # of a part of the test time, to be judged by its coverage
    max_counted_work: int = 700_000_000  # rows x trees: three minutes of a core at the measured 4 million a second
    advisory_groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's answer: what was found, against what."""

    rule: str
    passed: bool
    blocking: bool
    value: float
    threshold: float
    words: str


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """All answers on one group at one horizon (`group` is `*` for the aggregate)."""

    case: str
    group: str
    origins: int
    passed: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a challenger may serve. `passed` is False as soon as one blocking rule fails anywhere."""

    passed: bool
    metric_version: str
    against_champion: bool
    cases: tuple[CaseVerdict, ...]
    reasons: tuple[str, ...]  # every blocking rule that failed, in words; empty when passed

    def refusal(self, model: str) -> str | None:
        """That `model` was refused, with the first reason and how many there are more; None when it passed."""
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
    """Judge a challenger on its cases. One bootstrap seed gives one verdict, whatever the order of the cases.

    Cases of equal name are the groups of one aggregate, which is judged first. Raises `InvariantError`
    where the arrays of a case do not fit together.
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
        nothing = Finding("origins", False, True, 0.0, 1.0, "nothing was judged: the data has no test part")
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
    """The groups of one case as one, in the order of time. The champion counts only where all groups have it."""
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
    """Raise `InvariantError` where the arrays of a case do not fit together."""
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
    """The case without the origins that nobody could be judged on."""
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
    """One case; `groups`: how many are judged beside it."""
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
    """In the mean at most `most`, shown behind in no window, and, on the `first` loss, shown ahead in enough."""
    ratio = sums.ratio
    found = [
        Finding(
            f"{label}: mean",
            bool(ratio <= most),
            True,
            ratio,
            most,
            f"{label}: {ratio:.3f} of its loss, at most {most:g} is asked",
        )
    ]
    won = lost = 0
    for begin, end in window_edges(sums.time_s, rules.windows):
        _, high = ratio_bounds(sums.cut(begin, end), overlap_s, rules.error_ratio, rules.resamples, rng)
        won += bool(high < 1.0)
        lost += _is_behind(sums.cut(begin, end), overlap_s, rules.windows, rules, rng)
    if first:
        words = f"{label}: shown ahead in {won} of {rules.windows} windows, {rules.wins_needed} are asked"
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
    """A group may gain nothing; it may not pay."""
    ratio = sums.ratio
    paid = _is_behind(sums, overlap_s, groups, rules, rng)
    words = f"{label}: {ratio:.3f} of its loss, and no chance finding; more than {rules.behind_ratio:g} is too much"
    return Finding(f"{label}: group", not paid, blocking, ratio, rules.behind_ratio, words)


def _is_behind(sums: Sums, overlap_s: float, tests: int, rules: GateRules, rng: np.random.Generator) -> bool:
    """Worse by more than the slack, and shown so, at a level shared by `tests` looks of the kind (Bonferroni)."""
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
    """What was promised is delivered, over all and in the worst part of the test time.

    A group is held to both only where the bootstrap shows that they are missed: its few origins cannot
    resolve a percent.
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
            f"the {level:g} bound held {share:.4f} of the time, at least {least:.3f} is asked",
        ),
        Finding(
            f"coverage {level:g}: not too wide",
            bool(share <= most),
            False,
            share,
            most,
            f"the {level:g} bound held {share:.4f} of the time: wider than promised",
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
            f"the {level:g} bound held {share:.3f} of the time in the worst of {len(parts)} parts, at least "
            f"{asked:g} is asked"
        )
        found.append(Finding(f"coverage {level:g}: worst window", bool(reach >= asked), blocking, share, asked, words))
    return found


def _budget(counted_work: int, rules: GateRules) -> Finding:
    words = f"fits counted {counted_work:,} rows x trees, at most {rules.max_counted_work:,} are allowed"
    within = counted_work <= rules.max_counted_work
    return Finding("counted work", within, True, float(counted_work), float(rules.max_counted_work), words)
