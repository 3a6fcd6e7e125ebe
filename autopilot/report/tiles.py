"""The four figures at the top of the page, each beside the reference run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autopilot.core.model.units import format_duration, format_gpu_s, format_ratio
from autopilot.report.data import PolicyRun, ReportData
from autopilot.report.markup import text
from autopilot.report.words import HEADLINE_UTILIZATION, count, headline, pick, reference_of, subject_of

EQUAL_RATIO = 0.02
"""Figures closer than this part of the larger one are called equal."""
TIMES = 3.0
"""A figure above this multiple of the reference is given as a multiple."""

Show = Callable[[float | None], str]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One tile: its figure, the first measured one of `paths`, and further ones below it."""

    name: str
    hint: str
    paths: tuple[Path, ...]
    show: Show
    more_is_better: bool = False
    further: tuple[tuple[str, Path, Show], ...] = ()
    less: str
    more: str

    def better(self, subject: PolicyRun, reference: PolicyRun | None) -> bool | None:
        """True if the subject has the better figure; None if equal, or unknown for one of them."""
        ours, theirs = self.pair(subject, reference)
        if ours is None or theirs is None or self.show(ours) == self.show(theirs):
            return None
        if abs(ours - theirs) < EQUAL_RATIO * max(abs(ours), abs(theirs)):
            return None
        return (ours > theirs) is self.more_is_better

    def pair(self, subject: PolicyRun, reference: PolicyRun | None) -> tuple[float | None, float | None]:
        """The figure of both runs, by the first path known for both, else for the subject."""
        runs = [subject.result, *([reference.result] if reference else [])]
        known = [path for path in self.paths if all(pick(result, *path) is not None for result in runs)]
        known += [path for path in self.paths if pick(subject.result, *path) is not None]
        path = known[0] if known else self.paths[0]
        return pick(subject.result, *path), pick(reference.result, *path) if reference else None


MEASURES = (
    Measure(
        name="Waiting",
        hint="of a job, mean: before the first start, pauses and repeated work",
        paths=(("jobs", "total_wait_s_mean"), ("jobs", "queue_wait_s_mean")),
        show=format_duration,
        further=(
            ("longest", ("jobs", "longest_wait_s"), format_duration),
            ("99 % started within", ("jobs", "queue_wait_s_p99"), format_duration),
        ),
        less="less waiting",
        more="more waiting",
    ),
    Measure(
        name="Guarantee shortfall",
        hint="GPU time below guarantees while work waited inside them",
        paths=(("guarantees", "owed_gpu_s"),),
        show=format_gpu_s,
        further=(("longest of a queue", ("guarantees", "longest_owed_s"), format_duration),),
        less="less guarantee shortfall",
        more="more guarantee shortfall",
    ),
    Measure(
        name="Work lost",
        hint="done again after stops",
        paths=(("disruptions", "lost_gpu_s"),),
        show=format_gpu_s,
        further=(
            ("preemptions", ("disruptions", "preemptions"), count),
            ("moves", ("disruptions", "migrations"), count),
        ),
        less="less work lost",
        more="more work lost",
    ),
    Measure(
        name="Real utilization",
        hint="SM activity, of the capacity, until the last arrival",
        paths=tuple(path for _, path, _ in HEADLINE_UTILIZATION),
        show=format_ratio,
        more_is_better=True,
        further=(("allocated", ("utilization", "to_last_arrival", "allocation_ratio"), format_ratio),),
        less="lower real utilization",
        more="higher real utilization",
    ),
)
TOLD_FIRST = ("Guarantee shortfall", "Work lost")
"""The order of a heading: debts and losses of a policy come before waits."""


def heading(data: ReportData) -> str:
    """Better and worse figures than in the reference, in one line; the headline if nothing is compared."""
    subject, reference = subject_of(data), reference_of(data)
    if subject is None or reference is None or any(run.result.get("interrupted") for run in data.policies):
        return headline(data)
    better: list[str] = []
    worse: list[str] = []
    for measure in sorted(MEASURES, key=lambda each: each.name not in TOLD_FIRST):
        found = measure.better(subject, reference)
        if found is not None:
            words = measure.more if found is measure.more_is_better else measure.less
            (better if found else worse).append(words)
    if not better and not worse:
        return f"{subject.name} beside {reference.name}: no figure differs much"
    parts = [" and ".join([", ".join(each[:-1]), each[-1]] if each[1:] else each) for each in (better, worse) if each]
    return f"{subject.name} beside {reference.name}: {', but '.join(parts)}"


def tiles(data: ReportData) -> str:
    """Four tiles; empty without a run."""
    subject, reference = subject_of(data), reference_of(data)
    if subject is None:
        return ""
    return f'<ul class="tiles">{"".join(_tile(each, subject, reference) for each in MEASURES)}</ul>'


def _tile(measure: Measure, subject: PolicyRun, reference: PolicyRun | None) -> str:
    ours, theirs = measure.pair(subject, reference)
    bound = _bound(subject.result) if measure.more_is_better else None
    bars = [(subject.name, ours, "ours")]
    if reference is not None:
        bars.append((reference.name, theirs, "theirs"))
    if bound is not None:
        bars.append(("bound", bound, "bound"))
    whole = max((value for _, value, _ in bars if value is not None), default=0.0)
    shown = "".join(_bar(name, value, whole, kind, measure.show) for name, value, kind in bars if bars[1:] and whole)
    notes = [_beside(words, path, show, subject, reference) for words, path, show in measure.further]
    below = "".join(f"<li>{text(note)}</li>" for note in notes if note)
    return (
        f"<li><h2>{text(measure.name)}</h2><small>{text(measure.hint)}</small>"
        f'<p class="figure">{text(measure.show(ours))}</p>{_change(measure, subject, reference)}'
        f'<div class="bars">{shown}</div>{f"<ul>{below}</ul>" if below else ""}</li>'
    )


def _bar(name: str, value: float | None, whole: float, kind: str, show: Show) -> str:
    width = 100 * value / whole if value and whole else 0.0
    return (
        f'<div class="{kind}"><span>{text(name)}</span><i><b style="width:{width:.1f}%"></b></i>'
        f"<em>{text(show(value))}</em></div>"
    )


def _change(measure: Measure, subject: PolicyRun, reference: PolicyRun | None) -> str:
    """The distance of the subject from the reference, marked better or worse by word, sign and colour."""
    ours, theirs = measure.pair(subject, reference)
    if reference is None:
        return ""
    if ours is None or theirs is None:
        return f'<p class="change">not measured under {text(subject.name if ours is None else reference.name)}</p>'
    better = measure.better(subject, reference)
    if better is None:
        return f'<p class="change">as under {text(reference.name)}</p>'
    more = "more" if ours > theirs else "less"
    if measure.show is format_ratio:
        words = f"{abs(ours - theirs) * 100:.1f} points {more}"
    elif theirs == 0:
        words = "none"
    elif ours > TIMES * theirs:
        words = f"{ours / theirs:.1f} times as much"
    else:
        words = f"{abs(ours / theirs - 1) * 100:.0f} % {more}"
    kind, mark = ("better", "▲ better") if better else ("worse", "▼ worse")
    than = "under" if theirs == 0 else "as under" if "times" in words else "than under"
    return f'<p class="change {kind}"><b>{mark}</b>: {text(words)} {than} {text(reference.name)}</p>'


def _beside(words: str, path: Path, show: Show, subject: PolicyRun, reference: PolicyRun | None) -> str:
    """A further figure, with that of the reference; empty if unknown."""
    ours = pick(subject.result, *path)
    if ours is None:
        return ""
    theirs = pick(reference.result, *path) if reference else None
    return f"{words} {show(ours)}" + (
        f" ({reference.name}: {show(theirs)})" if reference and theirs is not None else ""
    )


def _bound(result: Mapping[str, object]) -> float | None:
    """The most SM activity within reach of any schedule of the same work / capacity; None if not known."""
    active, capacity = (pick(result, "real_use", key) for key in ("bound_active_gpu_s", "capacity_gpu_s"))
    return active / capacity if active is not None and capacity else None
