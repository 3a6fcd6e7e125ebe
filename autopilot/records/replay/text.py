"""The result of a replay as text for a terminal."""

from __future__ import annotations

from autopilot.core.model.units import counted, format_duration
from autopilot.records.replay.findings import OPEN_LOOP, PolicyDiff, ReplayResult, Shift


def replay_lines(result: ReplayResult, *, rows: int = 20) -> list[str]:
    """The result as lines; at most `rows` ticks and as many workloads are listed."""
    span = f"ticks {result.first_tick} to {result.last_tick}" if result.ticks or result.difference else "no ticks"
    head = f"{result.path}: {span}, policy {', '.join(result.policies) or 'none'}"
    if result.diff is not None:
        return [head, *_policy_lines(result, result.diff, rows)]
    if result.difference is None:
        return [head, f"identical: {counted(result.ticks, 'tick')} replayed without a difference"]
    found = result.difference
    return [
        head,
        f"differs at tick {found.tick} ({format_duration(found.now_s)}), after {result.ticks} identical ticks",
        f"  field     {found.field}",
        f"  recorded  {found.recorded}",
        f"  now       {found.replayed}",
    ]


def _policy_lines(result: ReplayResult, diff: PolicyDiff, rows: int) -> list[str]:
    lines = [
        f"replayed under {result.candidate}: {diff.ticks_that_differ} of {counted(result.ticks, 'tick')} differ",
        OPEN_LOOP,
        "",
    ]
    lines += _count_lines(diff)
    if diff.ticks:
        lines += ["", "ticks that differ (- only recorded, + only with the other policy)"]
        for tick in diff.ticks[:rows]:
            lines.append(f"  tick {tick.tick} ({format_duration(tick.now_s)})")
            lines += [f"    - {action}: {kind} {workload}" for action, kind, workload in tick.only_recorded]
            lines += [f"    + {action}: {kind} {workload}" for action, kind, workload in tick.only_candidate]
        lines += _more(diff.ticks_that_differ - min(rows, len(diff.ticks)), "ticks")
    if diff.shifts:
        lines += ["", "first proposal to admit"]
        lines += [f"  {shift.workload}  {_shift_words(shift)}" for shift in diff.shifts[:rows]]
        lines += _more(len(diff.shifts) - rows, "workloads")
    for names, words in (
        (diff.reserved_only_recorded, "reserved only in the record"),
        (diff.reserved_only_candidate, "reserved only with the other policy"),
    ):
        if names:
            lines += ["", f"{words}: {', '.join(names[:rows])}", *_more(len(names) - rows, "workloads")]
    return lines


def _count_lines(diff: PolicyDiff) -> list[str]:
    kinds = sorted({*diff.recorded.proposals, *diff.candidate.proposals})
    table = [(kind, diff.recorded.proposals.get(kind, 0), diff.candidate.proposals.get(kind, 0)) for kind in kinds]
    table += [
        ("accepted proposals", diff.recorded.accepted, diff.candidate.accepted),
        ("evicted workloads", diff.recorded.evictions, diff.candidate.evictions),
        ("workloads with a reservation", diff.recorded.reserved, diff.candidate.reserved),
    ]
    return [
        f"{'':30}{'recorded':>10}{'other':>10}",
        *(f"{name:30}{left:>10}{right:>10}" for name, left, right in table),
    ]


def _shift_words(shift: Shift) -> str:
    earlier_s = shift.earlier_s
    if earlier_s is None:
        return "only in the record" if shift.candidate_s is None else "only with the other policy"
    return f"{format_duration(abs(earlier_s))} {'earlier' if earlier_s > 0 else 'later'}"


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count} more {what}"] if count > 0 else []
