"""The page of a comparison over seeds: one table for each cluster, a plot of ranges, and the differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autopilot.files import write_bytes
from autopilot.report.charts import COLOURS, Plot, draw_all
from autopilot.report.markup import box, table, text
from autopilot.report.page import document, drawn, section, statement
from autopilot.report.words import Statement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One bar of the plot: the median and the range of a figure over the seeds."""

    label: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One plot of ranges; `unit`: the unit of its values."""

    name: str
    title: str
    unit: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: a heading for each policy, and rows of a figure's name and a cell for each policy."""

    title: str
    policies: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """Contents of the page, as text."""

    title: str
    headline: str
    facts: tuple[str, ...]
    findings: tuple[Statement, ...]
    tables: tuple[Table, ...]
    bars: tuple[Bars, ...]
    notes: tuple[str, ...]
    command: str


def render(page: ComparisonPage) -> str:
    """The page as one self-contained text."""
    pictures = draw_all(tuple(_plot(bars) for bars in page.bars if bars.ranges), files=False)
    chips = "".join(statement(each) for each in page.findings)
    head = (
        f'<header><p class="title">{text(page.title)}</p><h1>{text(page.headline)}</h1>'
        f'<p class="facts">{text(" · ".join(page.facts))}</p></header>'
    )
    sections = [
        section("differs", "What differs", f'<ul class="said">{chips}</ul>' if chips else ""),
        *(drawn(picture) for picture in pictures),
        *(section(f"table-{at}", each.title, _table(each), _NOTE) for at, each in enumerate(page.tables)),
        section("notes", "What was assumed", _list(page.notes)),
        section("repeat", "How to repeat it", f'<pre tabindex="0"><code>{text(page.command)}</code></pre>'),
    ]
    return document(page.title, "\n".join([head, *(part for part in sections if part)]))


def write_comparison(page: ComparisonPage, folder: Path) -> Path:
    """Write `index.html` into `folder`; returns its path. Raises `InputError` if that fails."""
    path = folder / "index.html"
    write_bytes(render(page).encode(), path)
    return path


_NOTE = "The median over the seeds, and in parentheses the lowest and the highest value. A dash: not measured."


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _table(each: Table) -> str:
    head = "<tr><th scope=col>Figure</th>" + "".join(f"<th scope=col>{text(name)}</th>" for name in each.policies)
    rows = [
        f"<tr><th scope=row>{text(name)}</th>" + "".join(f"<td>{text(cell)}</td>" for cell in cells) + "</tr>"
        for name, *cells in each.rows
    ]
    return box(each.title, table(f"{head}</tr>", rows))


def _plot(bars: Bars) -> Plot:
    """Medians as dots and ranges as lines, the first bar on top."""
    shown = bars.ranges[:MOST_BARS]

    def draw(figure: Figure, wide: bool) -> None:
        figure.set_figheight(0.8 + 0.3 * len(shown))
        axis = figure.subplots()
        places = range(len(shown), 0, -1)
        axis.hlines(places, [each.low for each in shown], [each.high for each in shown], COLOURS["gap"], linewidth=5)
        axis.plot([each.middle for each in shown], places, "o", color=COLOURS["work"], markersize=5)
        letters = 60 if wide else 22
        axis.set_yticks(places, [each.label[:letters] for each in shown])
        axis.set_ylim(0.4, len(shown) + 0.6)
        axis.set_xlim(left=0)
        axis.set_xlabel(bars.unit)

    return Plot(
        name=bars.name,
        title=bars.title,
        reading="The dot is the median over the seeds, the line the range from the lowest to the highest value.",
        draw=draw,
    )
