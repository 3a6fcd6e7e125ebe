"""Sentences and figures of a result, with worse figures beside better ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.units import counted, format_duration, format_gpu_s, format_ratio
from autopilot.report.data import Floats, PolicyRun, ReportData

TEXTBOOK = ("static", "fifo", "fifo-skip", "sjf", "sjf-skip", "gpu-time-skip", "las", "easy", "kueue", "slurm")
PHYSICS = {
    "ideal": "no overheads: starting, checkpointing, moving and restarting cost no time, which favours policies "
    "that preempt and move",
    "charged": "each preemption or move loses 60 s of progress and adds 30 s of restore",
    "real": "image pulls, model loads, checkpoint writes and restores and MIG changes take time",
}
DURATIONS = {
    "exact": "policies that need a run time get the true one",
    "predicted": "run times are predicted by models that learn from ended jobs, and are corrected as jobs run on",
    "hazard": "run times are predicted from the hazards by age of the tenant's jobs of that width",
    "last-two": "run times are predicted from the tenant's last two jobs of that width",
}
TELEMETRY = {
    "full": "every scrape rendered and parsed",
    "windowed": "the windows are filled without rendering each scrape",
}


TO_LAST_ARRIVAL = ("utilization", "to_last_arrival")
"""Path of the ratios until the last submit in a result."""


def pick(result: Mapping[str, object], *path: str) -> float | None:
    """The number at `path` in a result, or None if it is null, absent or not finite."""
    value: object = result
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def pick_list(result: Mapping[str, object], *path: str) -> Sequence[object]:
    """The list at `path` in a result; empty if there is none."""
    value: object = result
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def mean_of(values: Floats) -> float | None:
    """The mean of the known values, None if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def subject_of(data: ReportData) -> PolicyRun | None:
    """The subject of the page: `autopilot`, else the first run outside the textbook policies, else the first."""
    by_name = {run.name: run for run in data.policies}
    own = [run for run in data.policies if run.name not in TEXTBOOK]
    return by_name.get("autopilot") or next(iter([*own, *data.policies]), None)


def reference_of(data: ReportData) -> PolicyRun | None:
    """The run to compare with: `fifo-skip`, `fifo`, else the first other one."""
    subject = subject_of(data)
    others = [run for run in data.policies if run is not subject]
    by_name = {run.name: run for run in others}
    return by_name.get("fifo-skip") or by_name.get("fifo") or next(iter(others), None)


def ordered(data: ReportData) -> tuple[PolicyRun, ...]:
    """The runs, subject first, then the reference, then as given."""
    first = [run for run in (subject_of(data), reference_of(data)) if run is not None]
    return tuple(first + [run for run in data.policies if not any(run is f for f in first)])


def count(value: float | None) -> str:
    """A whole number with separators; `-` for unknown."""
    return "-" if value is None else f"{value:,.0f}"


def useful_share(result: Mapping[str, object]) -> float | None:
    """Useful share of the utilization bound: to_last_arrival_ratio / bound_ratio."""
    useful, bound = (pick(result, "utilization", k) for k in ("to_last_arrival_ratio", "bound_ratio"))
    return useful / bound if useful is not None and bound else None


def headline(data: ReportData) -> str:
    """The result in one sentence, better or worse."""
    subject, reference = subject_of(data), reference_of(data)
    if subject is None:
        return "No policy was simulated."
    cut = next((run for run in data.policies if run.result.get("interrupted")), None)
    if cut is not None:  # work beyond the end of the run would count as not waited for
        came_to = format_duration(pick(cut.result, "makespan_s"))
        return f"Interrupted after {came_to} of the run: {_alone(cut)}"
    if reference is None:
        return _alone(subject)
    work, fair = _work(subject, reference)
    return (
        f"{subject.name} {work}{_kept(subject, reference)} {_waiting(subject, reference)}"
        f"{_utilization(subject, reference)}"
        f"{'' if fair else _UNFAIR}."
    )


_UNFAIR = "; the averages are over the jobs that each of them finished"


def _alone(run: PolicyRun) -> str:
    finished, submitted = pick(run.result, "jobs", "finished"), pick(run.result, "jobs", "submitted")
    waits = ((name, pick(run.result, *path)) for name, path in WAITS)
    parts = [f"{run.name} finished {count(finished)} of {count(submitted)} jobs"]
    for name, path, until in HEADLINE_UTILIZATION:
        if (ratio := pick(run.result, *path)) is not None:
            parts.append(f"at a {name} of {format_ratio(ratio)}{until}")
            break
    parts += [f"with a {name} of {format_duration(wait_s)}" for name, wait_s in waits if wait_s is not None][:1]
    return ", ".join(parts) + "."


def _work(subject: PolicyRun, reference: PolicyRun) -> tuple[str, bool]:
    """The completed work of both runs, and True if their averages cover the same work."""
    ours, theirs = (pick(r.result, "jobs", "finished") for r in (subject, reference))
    if ours is not None and ours == theirs:
        return f"finished the same {count(ours)} jobs", True
    if ours is None or theirs is None:
        return "ran the same work", True
    return f"finished {count(ours)} jobs ({reference.name}: {count(theirs)})", False


HEADLINE_UTILIZATION = (
    (
        "real utilization",
        ("utilization", "to_last_arrival", "real_utilization_ratio"),
        " until the last arrival",
    ),
    ("real utilization", ("utilization", "real_utilization_ratio"), ""),
    ("kept progress", ("utilization", "to_last_arrival_ratio"), " of the capacity until the last arrival"),
)
"""The utilization figure of a headline: the first one measured by each of its runs."""


def _utilization(subject: PolicyRun, reference: PolicyRun) -> str:
    for name, path, until in HEADLINE_UTILIZATION:
        ours, theirs = (pick(run.result, *path) for run in (subject, reference))
        if ours is not None and theirs is not None:
            return f", at a {name} of {format_ratio(ours)} instead of {format_ratio(theirs)}{until}"
    return ""


PRICES = (
    ("guarantee shortfall", ("guarantees", "owed_gpu_s")),
    ("work lost", ("disruptions", "lost_gpu_s")),
)
"""Debts and losses of a policy: the first figures of a headline, and the possible cost of a shorter wait."""
WAITS = (
    ("mean total wait", ("jobs", "total_wait_s_mean")),
    ("mean queue wait", ("jobs", "queue_wait_s_mean")),
    ("p99 of the queue wait", ("jobs", "queue_wait_s_p99")),
)


def _kept(subject: PolicyRun, reference: PolicyRun) -> str:
    """Owed and lost GPU time of both; empty if neither has any."""
    shown = []
    for name, path in PRICES:
        ours, theirs = (pick(run.result, *path) for run in (subject, reference))
        if ours is not None and theirs is not None and (ours or theirs):
            shown.append(f"{format_gpu_s(ours)} of {name} instead of {format_gpu_s(theirs)}")
    return f" with {' and '.join(shown)}," if shown else ""


def ahead_words(other: str, theirs: Mapping[str, object], subject: str, ours: Mapping[str, object]) -> str:
    """Shorter waits under `other` than under `subject`, with their cost; empty without any."""
    ahead, costs = (
        [
            f"{name} {show(value)} ({subject}: {show(own)})"
            for name, path in figures
            if (value := pick(theirs, *path)) is not None
            and (own := pick(ours, *path)) is not None
            and (value - own) * sign > 0
            and show(value) != show(own)
        ]
        for figures, show, sign in ((WAITS, format_duration, -1), (PRICES, format_gpu_s, 1))
    )
    if not ahead:
        return ""
    price = f". It costs: {', '.join(costs)}" if costs else ""
    return f"{other} is ahead of {subject}: {', '.join(ahead)}{price}"


def _waiting(subject: PolicyRun, reference: PolicyRun) -> str:
    for key in ("total_wait_s_mean", "queue_wait_s_mean"):
        ours, theirs = (pick(r.result, "jobs", key) for r in (subject, reference))
        if ours is None or theirs is None:
            continue
        each = f"{format_duration(ours)} per job on average instead of {format_duration(theirs)}"
        if theirs == 0:
            return (
                f"and no job waited, as under {reference.name}"
                if ours == 0
                else (f"with a mean wait of {format_duration(ours)} where {reference.name} had none")
            )
        change = ours / theirs - 1
        if abs(change) < 0.005:
            return f"with as much waiting as {reference.name}: {format_duration(ours)} per job on average"
        if change > 2:
            return f"with {ours / theirs:.1f} times the waiting of {reference.name}: {each}"
        more = "more" if change > 0 else "less"
        return f"with {abs(change) * 100:.0f} % {more} waiting than {reference.name}: {each}"
    return f"beside {reference.name}; waiting was not measured for both"


@dataclass(frozen=True, slots=True)
class Statement:
    """A finding as a sentence. `better`: than in the reference; None: neither, or not compared."""

    words: str
    better: bool | None = None


def notes(data: ReportData) -> tuple[str, ...]:
    """Sentences below the tiles: the finished work of both, the jobs that pay for it, and the figures with others
    ahead.
    """
    subject, reference = subject_of(data), reference_of(data)
    if subject is None:
        return ()
    found = [fared_words(subject.result)]
    if reference is not None:
        work, fair = _work(subject, reference)
        found.insert(0, f"{subject.name} {work}{f' as {reference.name}' if fair else _UNFAIR}")
        others = [run for run in ordered(data) if run is not subject]
        found += [ahead_words(run.name, run.result, subject.name, subject.result) for run in others]
    return tuple(f"{sentence}." for sentence in found if sentence)


def fared_words(result: Mapping[str, object]) -> str:
    """Number of jobs finished later than under the baseline, with their delay; empty without a comparison."""
    fared = result.get("fared_worse")
    worse, better, compared = (pick(result, "fared_worse", key) for key in ("worse", "better", "compared"))
    if not isinstance(fared, Mapping) or not compared:
        return ""
    sentence = (
        f"{count(worse)} of {count(compared)} jobs ended later than under {fared.get('reference')}, "
        f"{count(better)} earlier"
    )
    by_s, most_s = (pick(result, "fared_worse", key) for key in ("worse_by_s_mean", "worse_by_s_max"))
    if by_s is not None:
        sentence += f"; the later ones by {format_duration(by_s)} on average, at most {format_duration(most_s)}"
    unfinished = pick(result, "fared_worse", "unfinished")
    return sentence + (f"; {count(unfinished)} did not end at all" if unfinished else "")


def refused_words(result: Mapping[str, object]) -> str:
    """Number of refused requests of a registered policy, and the first of them; empty without one."""
    refused = result.get("refused")
    if not isinstance(refused, Mapping) or not refused["first"]:
        return ""
    one, by_reason = refused["first"][0], refused["by_reason"]
    return (
        f"{counted(sum(by_reason.values()), 'request was|requests were')} refused; the first: {one['request']} of job "
        f"{one['job_id']} (row {one['row']}) at {format_duration(one['at_s'])}: {one['reason']}"
    )


def fared_lines(result: Mapping[str, object], most: int) -> tuple[str, ...]:
    """The jobs with the largest delay beside the baseline, one sentence each."""
    jobs = pick_list(result, "fared_worse", "jobs")
    return tuple(
        f"{job['job_id']} ({job['gpus']} GPU{'s' if job['gpus'] != 1 else ''}, {job['tenant']}): "
        f"{format_duration(job['worse_by_s'])} later, waited {format_duration(job['total_wait_s'])} instead of "
        f"{format_duration(job['reference_total_wait_s'])}, {_stops(job['evictions'], job['moves'])}"
        for job in jobs[:most]
        if isinstance(job, Mapping)
    )


def _stops(stops: int, moves: int) -> str:
    if not stops:
        return "never stopped"
    times = "once" if stops == 1 else f"{stops:,} times"
    return f"stopped {times}" + (f", {moves:,} of them to move" if moves else "")


def alarms(data: ReportData) -> tuple[str, ...]:
    """Warnings: violated invariants, unfinished work, dropped rows."""
    found: dict[str, list[str]] = {}
    runs = ordered(data)
    for run in runs:
        violated = pick(run.result, "invariants", "violated")
        submitted, finished = (pick(run.result, "jobs", k) for k in ("submitted", "finished"))
        never = int(np.isnan(run.waits_s).sum())
        if violated:
            found.setdefault(f"{count(violated)} invariants violated", []).append(run.name)
        if submitted is not None and finished is not None and finished < submitted:
            tail = f", {never:,} of them never started" if never else ""
            line = f"{count(submitted - finished)} of {count(submitted)} jobs did not finish{tail}"
            found.setdefault(line, []).append(run.name)
    every = len(runs) > 2
    return tuple(
        f"{'every policy' if every and len(names) == len(runs) else ', '.join(names)}: {line}"
        for line, names in found.items()
    )
