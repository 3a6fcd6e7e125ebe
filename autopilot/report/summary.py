"""Actions of a policy, with their reasons and costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.records import Code
from autopilot.core.model.units import format_gpu_s, format_ratio
from autopilot.explain.proposals import Answer, answer_words
from autopilot.report.advice import CURES, FIELD_OF, MODE_CODES, refused_gain, waited
from autopilot.report.data import DecisionRow, PolicyRun
from autopilot.report.embedded import Part, anchor
from autopilot.report.markup import box, chip, fold, table, text
from autopilot.report.words import pick

MOST_NAMED = 5
"""Decisions in each list of the most useful and the costliest."""
MOST_QUEUES = 3
EXPECTED = "Expected loss"
ABOUT = {action.name: action.about for action in ACTIONS}


def summary(run: PolicyRun, parts: Sequence[Part]) -> str:
    """Everything under "What it did and why" for one run; empty without decisions."""
    if not run.decisions:
        return ""
    places = {id(row): part for part in parts for row in part.rows}

    def link(row: DecisionRow) -> str:
        return f'<a href="{text(anchor(places[id(row)], row))}">{text(row.id)}</a>'

    folds = (
        ("Most useful decisions", _best(run, "Gain", lambda row: row.benefit_gpu_s, link)),
        ("Costliest decisions", _best(run, EXPECTED, lambda row: row.lost_gpu_s, link)),
        ("Refused by guards", by_guard(run)),
        ("What waiting work waited for", by_reason(run)),
    )
    return by_action(run) + _really_lost(run) + "".join(fold(f"<h3>{title}</h3>", body) for title, body in folds)


def by_action(run: PolicyRun) -> str:
    """Counts of each action by verdict, the most frequent first; absent verdicts have no column."""
    answers = [answer for answer in Answer if any(row.answer == answer for row in run.decisions)]
    counts = Counter((row.action, row.answer) for row in run.decisions)
    lost: dict[str, float] = defaultdict(float)
    for row in run.decisions:
        lost[row.action] += row.lost_gpu_s if row.answer == Answer.ACCEPTED else 0.0
    totals = Counter(row.action for row in run.decisions)
    head = _head(("Action", *map(answer_words, answers), *([EXPECTED] if any(lost.values()) else [])))
    rows = []
    for action, _ in totals.most_common():
        about = f"<small>{text(ABOUT.get(action, ''))}</small>"
        cells = "".join(f"<td>{counts[action, answer] or '-'}</td>" for answer in answers)
        paid = f"<td>{text(format_gpu_s(lost[action])) if lost[action] else '-'}</td>" if any(lost.values()) else ""
        rows.append(f"<tr><th scope=row>{text(action)}{about}</th>{cells}{paid}</tr>")
    return box("Decisions by action", table(head, rows, "counts"))


def _really_lost(run: PolicyRun) -> str:
    """Total actual losses, if any were incurred or expected."""
    lost_gpu_s = pick(run.result, "disruptions", "lost_gpu_s")
    if lost_gpu_s is None or not any(row.lost_gpu_s for row in run.decisions):
        return ""
    return (
        "<p>Decisions are judged by their expected loss; the actual loss of the whole run, work done "
        f"twice, is {text(format_gpu_s(lost_gpu_s))}.</p>"
    )


def _best(run: PolicyRun, name: str, worth: Callable[[DecisionRow], float], link: Callable[[DecisionRow], str]) -> str:
    """The accepted decisions of highest worth, each with a link to its details."""
    taken = [row for row in run.decisions if row.answer == Answer.ACCEPTED and worth(row) > 0]
    best = sorted(taken, key=worth, reverse=True)[:MOST_NAMED]
    losses = name == EXPECTED and any(isfinite(row.really_lost_gpu_s) for row in best)
    rows = [
        f"<tr><th scope=row>{text(format_gpu_s(worth(row)))}</th>{_really(row) if losses else ''}"
        f"<td>{text(row.at)}</td><td>{text(row.action)}</td>"
        f'<td>{text(row.workload)}<small>{text(row.tenant)}</small></td><td class="why">{text(row.why)}'
        f"<small>{link(row)}</small></td></tr>"
        for row in best
    ]
    head = _head((name, *(["Actual loss"] if losses else []), "Time", "Action", "Workload", "Why"))
    return box(f"Decisions by {name.lower()}", table(head, rows, "named")) if rows else ""


def _really(row: DecisionRow) -> str:
    return f"<td>{text(format_gpu_s(row.really_lost_gpu_s))}</td>"


def by_guard(run: PolicyRun) -> str:
    """Refusals of each guard, their count and held-back gain, with the policy field of its limit."""
    times: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], str] = {}
    for row in run.decisions:
        for guard, code, words in row.refusals:
            times[guard, code] += 1
            example.setdefault((guard, code), words)
    gains = refused_gain(run)
    rows = [
        f"<tr><th scope=row>{text(guard)}<small>{text(code)}</small></th><td>{count:,}</td>"
        f"<td>{text(format_gpu_s(gains[code])) if gains[code] else '-'}</td><td "
        f'class="why">{text(example[guard, code])}</td>'
        f"<td>{_field(code, run.policy)}</td></tr>"
        for (guard, code), count in times.most_common()
    ]
    head = _head(("Guard, code", "Refused", "Gain refused", "First example", "Policy field (now)"))
    return box("Refusals by guard", table(head, rows, "named")) if rows else ""


def by_reason(run: PolicyRun) -> str:
    """The reasons for waiting by their fraction of the GPU time of waiting work, from one per cent on."""
    total = sum(run.waited_gpu_s.values())
    by_code = {code: (sum(queues.values()), queues) for code, queues in waited(run).items()}
    rows = [
        f"<tr><th scope=row>{text(code)}</th><td>{text(format_ratio(gpu_s / total))}</td>"
        f"<td>{text(format_gpu_s(gpu_s))}</td><td>{text(_queues(queues))}</td><td>{_field(code, run.policy)}</td></tr>"
        for code, (gpu_s, queues) in sorted(by_code.items(), key=lambda each: (-each[1][0], each[0]))
        if total and gpu_s >= 0.01 * total
    ]
    head = _head(("Reason", "Of all waiting", "GPU time requested", "Queues that waited most", "Policy field (now)"))
    return box("Reasons for waiting", table(head, rows, "named")) if rows else ""


def _queues(queues: Mapping[str, float]) -> str:
    """The first queues, each with its GPU time of waiting."""
    return ", ".join(f"{queue} {format_gpu_s(gpu_s)}" for queue, gpu_s in list(queues.items())[:MOST_QUEUES])


def _field(code: str, policy: Mapping[str, str]) -> str:
    """The policy field of the limit behind a code, with its value."""
    if Code(code) in MODE_CODES:
        return "modes"
    path = FIELD_OF.get(Code(code)) or CURES.get(Code(code))
    if path is None:
        return "-"
    return f"{text(path)}{f' ({text(policy[path])})' if path in policy else ''}"


def _head(names: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<th scope=col>{text(name)}</th>" for name in names) + "</tr>"


def finder(part: Part, data: str, further: Sequence[Part]) -> str:
    """The search over the decisions of one part, with its data; `further` are the pages with the rest of the run."""
    rest = "".join(
        f'<li><a href="{text(other.file)}">Decisions {other.first:,} to {other.first + len(other.rows) - 1:,}</a>, '
        f"from {text(other.rows[0].at)} on</li>"
        for other in further
    )
    counts = Counter(row.answer for row in part.rows)
    said = " ".join(f"{chip(answer.value)} {counts[answer]:,}" for answer in Answer if counts[answer])
    names = ("Time", "Answer", "Action", "Workload", "GPUs", "Gain", "Expected loss", "Why")
    return (
        f"<h3>{text(part.run)}</h3><p>{part.total:,} decisions{_span(part)}: {said}</p>"
        + (f"<p>Further pages hold the rest, each with its own search:</p><ul>{rest}</ul>" if rest else "")
        + f'<div class="finder" data-prefix="{text(part.prefix)}"><p class="wait">Unpacking the decisions needs '
        f"a script; "
        "autopilot decisions finds them too.</p>"
        '<p class="find" hidden><label>Containing <input name="words" type="search" autocomplete="off" '
        'placeholder="a job, an id, a reason, a code"></label> '
        + "".join(
            f'<label>{label} <select name="{name}"><option value="">all</option></select></label> '
            for name, label in (("action", "Action"), ("tenant", "Tenant"), ("answer", "Answer"))
        )
        + '<label>Order <select name="order"><option value="time">time</option><option value="gain">gain</option>'
        '<option value="lost">expected loss</option></select></label> <output aria-live="polite"></output></p>'
        + box(f"Decisions of {part.run}", table(_head(names), (), "decisions"), "box long")
        + '<p><button type="button" class="more" hidden></button></p>'
        f'<script type="text/plain">{data}</script></div>'
    )


def _span(part: Part) -> str:
    """The range of decisions on a page, unless it holds all."""
    if len(part.rows) == part.total:
        return ""
    return f"; this page holds {part.first:,} to {part.first + len(part.rows) - 1:,}"
