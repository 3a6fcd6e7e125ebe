"""The plot of the services: p99 latency against the objective, replicas and load over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autopilot.core.model.units import format_ratio
from autopilot.report.charts import COLOURS, Plot
from autopilot.report.data import PolicyRun, ReportData, ServiceSeries
from autopilot.report.plot_layout import (
    PANEL_POINTS,
    WIDE_POINTS,
    beside,
    columns_for,
    end_s,
    line_style,
    quantile_words,
    steps,
    time_axis,
)
from autopilot.report.words import ordered, pick

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SERVICES = 6
Lines = list[tuple[int, PolicyRun, ServiceSeries]]


def latency_plot(data: ReportData) -> Plot | None:
    """Per service: p99 with its objective, replicas, requests per second; the worst services first."""
    by_name: dict[str, Lines] = {}
    for index, run in enumerate(ordered(data)):
        for service in run.services:
            if len(service.t_s):
                by_name.setdefault(service.name, []).append((index, run, service))
    if not by_name:
        return None
    worst_first = sorted(
        by_name, key=lambda name: (-max(_late_share(s) or _over(s) or 0.0 for *_, s in by_name[name]), name)
    )
    shown = worst_first[:MOST_SERVICES]
    until_s = max(end_s(s.t_s) for lines in by_name.values() for *_, s in lines)

    def draw(figure: Figure, wide: bool) -> None:
        columns = columns_for(len(shown)) if wide else 1
        rows = -(-len(shown) // columns)
        points = WIDE_POINTS if wide and columns == 1 else PANEL_POINTS
        figure.set_figheight(rows * 3.7 + 0.5)
        figure.set_layout_engine("constrained", wspace=0.06)
        unit_s, label = time_axis(until_s)
        grid = figure.subplots(
            rows * 3, columns, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [3, 1.3, 1.3] * rows}
        )
        for place in range(rows * columns):
            row, column = divmod(place, columns)
            trio = [grid[row * 3 + k][column] for k in range(3)]
            if place >= len(shown):
                for spare in trio:
                    spare.set_visible(False)
                continue
            _service(trio, by_name[shown[place]], unit_s, points, len(data.policies))
            trio[0].set_xlim(0, until_s / unit_s)
        figure.supxlabel(label, fontsize=8.5, color=COLOURS["quiet"])
        marks: dict[str, Artist] = {}
        for axis in figure.axes:
            for mark, name in zip(*axis.get_legend_handles_labels(), strict=True):
                marks.setdefault(name, mark)
        figure.legend(
            list(marks.values()),
            list(marks),
            loc="outside upper left",
            ncols=min(len(marks), 5 if wide else 2),
        )

    return Plot(
        name="latency",
        title=_title(data, by_name[shown[0]]),
        reading="Per service: the 99th percentile of latency (logarithmic; each step shows its worst minute) with "
        "the objective as a dashed line, the serving replicas, and the request rate (filled) below its "
        "forecast at that time, where there was one. A line above the objective means that more than one "
        "request in a hundred was late; a quiet minute has few requests. "
        + (f"The {MOST_SERVICES} worst of {len(by_name)} services are shown." if len(by_name) > len(shown) else ""),
        draw=draw,
    )


def _over(service: ServiceSeries) -> float | None:
    """Fraction of the known time with p99 over the objective."""
    known = np.isfinite(service.p99_s)
    if service.objective_s is None or not known.any():
        return None
    return float((service.p99_s[known] > service.objective_s).mean())


def _title(data: ReportData, lines: Lines) -> str:
    """The fraction of late requests, as in the figures of the page."""
    shares = [
        (run.name, format_ratio(late))
        for run in ordered(data)
        if (late := pick(run.result, "slo", "violation_ratio")) is not None
    ]
    if shares:
        return f"Requests over their latency objective: {beside(shares)}"
    name, objective_s = lines[0][2].name, lines[0][2].objective_s
    if objective_s is None:
        return f"Latency of {name}; no objective is set"
    return f"Latency of {name} against its objective of {quantile_words(objective_s)}"


def _late_share(service: ServiceSeries) -> float | None:
    """Requests over the objective / requests; None if not counted."""
    if service.late is None or service.objective_s is None or len(service.t_s) < 2:
        return None
    requests = float(np.nansum(service.rate_rps) * (service.t_s[1] - service.t_s[0]))
    return float(np.nansum(service.late)) / requests if requests else None


def _late_words(lines: Lines) -> str:
    """The name, and below it `late 0.1 % (fifo-skip: 2.3 %)` if counted: narrow enough for a panel."""
    name = _cut(lines[0][2].name)
    shares = [(run.name, format_ratio(late)) for _, run, s in lines if (late := _late_share(s)) is not None]
    if not shares:
        return name
    return f"{name}\nlate {shares[0][1]}" + "".join(f" ({_cut(other, 20)}: {late})" for other, late in shares[1:2])


def _cut(name: str, most: int = 36) -> str:
    """A name in at most `most` letters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _service(trio: list[Axes], lines: Lines, unit_s: float, points: int, policies: int) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    top, middle, bottom = trio
    for index, run, service in lines:
        style = line_style(index, policies)
        t, p99_s = steps(service.t_s, service.p99_s, points, worst=True)
        top.step(t / unit_s, p99_s, where="post", label=run.name, **style)
        middle.step(t / unit_s, steps(service.t_s, service.replicas, points)[1], where="post", **style)
    first = lines[0][2]
    if first.objective_s is not None:
        line = top.axhline(first.objective_s, label="objective", color=COLOURS["ink"], linewidth=1.2, zorder=4)
        line.set_linestyle((0, (4, 2)))
    t, rate = steps(first.t_s, first.rate_rps, points)
    bottom.fill_between(t / unit_s, 0, rate, step="post", color=COLOURS["unknown"], linewidth=0)
    for index, _, service in lines:
        if service.foreseen_rps is not None:
            t, band = steps(service.t_s, service.foreseen_rps, points)
            style = line_style(index, policies) | {"linewidth": 1.0}
            bottom.step(t / unit_s, band, where="post", label=f"foreseen: {service.foreseen}", **style)
    top.set_yscale("log")
    top.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    top.yaxis.set_major_formatter(lambda value, _: quantile_words(value))
    top.yaxis.set_minor_formatter(NullFormatter())
    top.set_title(_late_words(lines), linespacing=1.4)
    top.set_ylabel("p99")
    middle.set_ylabel("replicas")
    middle.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    bottom.set_ylabel("req/s")
    bottom.yaxis.set_major_locator(MaxNLocator(3))
    for axis in (middle, bottom):
        axis.set_ylim(bottom=0)
