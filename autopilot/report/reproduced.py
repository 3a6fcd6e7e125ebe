"""Agreement of baselines with the starts of a job file, as tables of text for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autopilot.core.model.units import format_duration, format_ratio
from autopilot.report.markup import pairs, text

TITLE = "How far the recorded starts are reproduced"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: headings and rows of text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


HEADINGS = ("starts", "within tolerance", "wait error, p50", "p90", "mean wait", "recorded")


def tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """All baselines, then the closest one by partition and width, its days, and the likely causes of the
    differences.
    """
    closest = found["closest"]
    mine = found["policies"][closest]
    rows = [(name, *_cells(block), format_ratio(_waited(block))) for name, block in found["policies"].items()]
    yield Table("baselines", ("baseline", *HEADINGS, "of those that waited"), tuple(rows))
    for kind, blocks in mine["by"].items():
        yield Table(f"{closest} by {kind}", (kind, *HEADINGS), tuple((name, *_cells(b)) for name, b in blocks.items()))
    if mine["busy_by_day"]:
        busy = [(each["day"], *_days(each)) for each in mine["busy_by_day"]]
        yield Table(f"{closest} by day", ("day", "GPU-h held", "recorded"), tuple(busy))
    if mine["causes"]:
        causes = [(each["words"], f"{each['jobs']:,}") for each in mine["causes"]]
        yield Table("causes", ("what the differences seem to be", "jobs"), tuple(causes))


def busy_words(block: Mapping[str, Any]) -> str:
    """GPU-hours by day in one line; empty if not counted."""
    days = block["busy_by_day"] or ()
    if not days:
        return ""
    off = [each["gpu_h"] - each["recorded_gpu_h"] for each in days]
    worst = max(range(len(days)), key=lambda k: abs(off[k]))
    ours, theirs = (sum(each[name] for each in days) for name in ("gpu_h", "recorded_gpu_h"))
    words = f"GPUs held: {ours:,.1f} GPU-h, {theirs:,.1f} as recorded"
    if len(days) == 1:
        return words
    each = days[worst]
    return f"{words}; most apart on {each['day']}: {each['gpu_h']:,.1f} and {each['recorded_gpu_h']:,.1f}"


def section_body(found: Mapping[str, Any]) -> str:
    """The section of the page; empty without a reproduction."""
    if not found:
        return ""
    words = f"<p>{text(sentence(found['words']))}</p>"
    return words + "".join(
        f"<h3>{text(each.title[:1].upper() + each.title[1:])}</h3>" + pairs(each.title, each.headings, each.rows)
        for each in tables(found)
    )


def sentence(words: str) -> str:
    """The verdict with a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def _cells(block: Mapping[str, Any]) -> Sequence[str]:
    return (
        f"{block['jobs']:,}",
        format_ratio(block["within_tolerance_ratio"]),
        *(
            format_duration(block[name])
            for name in ("wait_error_s_p50", "wait_error_s_p90", "wait_s_mean", "wait_s_mean_recorded")
        ),
    )


def _waited(block: Mapping[str, Any]) -> float | None:
    ratio: float | None = block["waited"]["within_tolerance_ratio"]
    return ratio


def _days(each: Mapping[str, Any]) -> tuple[str, str]:
    return f"{each['gpu_h']:,.1f}", f"{each['recorded_gpu_h']:,.1f}"
