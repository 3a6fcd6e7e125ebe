"""The plots of the page. Every function takes the data and returns a `Plot`, or None without data to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.core.model.units import format_duration, format_ratio
from autopilot.report.charts import COLOURS, Plot
from autopilot.report.data import Floats, PolicyRun, ReportData, Series, shrink_heat
from autopilot.report.latency import latency_plot
from autopilot.report.plot_layout import (
    CURVE_POINTS,
    PANEL_POINTS,
    WIDE_POINTS,
    beside,
    columns_for,
    end_s,
    line_style,
    panels,
    steps,
    time_axis,
)
from autopilot.report.words import mean_of, ordered, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAIT_TICKS_S = {
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    36000: "10 h",
    259200: "3 d",
    2592000: "30 d",
}


def plots_of(data: ReportData) -> tuple[Plot, ...]:
    """The plots in the order of the page, without those lacking data."""
    makers: tuple[Callable[[ReportData], Plot | None], ...] = (
        utilization_plot,
        waits_plot,
        heat_plot,
        latency_plot,
        fragmentation_plot,
    )
    return tuple(plot for plot in (make(data) for make in makers) if plot is not None)


# --- shared ---------------------------------------------------------------------------------------


# --- allocation, hardware and gap -----------------------------------------------------------------


def utilization_plot(data: ReportData) -> Plot | None:
    """Allocated, SM-active and the gap between them over time, one panel per policy."""
    runs = [run for run in ordered(data) if len(run.series.t_s)]
    if not runs:
        return None
    until_s = max(end_s(run.series.t_s) for run in runs)
    measured = any(np.isfinite(run.series.hardware_ratio).any() for run in runs)
    blind = any((np.isnan(r.series.hardware_ratio) & (r.series.allocation_ratio > 0)).any() for r in runs)

    def draw(figure: Figure, wide: bool) -> None:
        unit_s, label = time_axis(until_s)
        axes = panels(figure, len(runs), wide, 2.2 if wide else 1.95, head_in=0.5 if wide else 1.2)
        for axis, run in zip(axes, runs, strict=True):
            _utilization_panel(axis, run.series, unit_s)
            _panel_title(axis, run)
            axis.set_xlim(0, until_s / unit_s)
            axis.set_ylim(0, 100)
        figure.supxlabel(label, fontsize=8.5, color=COLOURS["quiet"])
        figure.supylabel("% of the GPUs", fontsize=8.5, color=COLOURS["quiet"])
        _utilization_key(figure, wide, measured, blind)

    idle = [(run.name, run.result) for run in runs]
    gaps = [(n, format_ratio(g)) for n, r in idle if (g := _gap(r)) is not None]
    handed = [(n, format_ratio(a)) for n, r in idle if (a := pick(r, "utilization", "allocation_ratio")) is not None]
    title = "How many GPUs were allocated"
    if gaps:
        title = f"Of the allocated GPU time, idle: {beside(gaps)}"
    elif handed:
        title = f"Allocated GPU time: {beside(handed)}"
    return Plot(
        name="utilization",
        title=title,
        reading="Each panel is one policy, all on the same scales. "
        + (
            "Blue is work that the GPUs really do (SM active), orange is allocated but idle; the blank "
            "area above was not allocated."
            if measured
            else "Grey is allocated; this run did not measure how busy those GPUs were."
        ),
        draw=draw,
    )


def _gap(result: object) -> float | None:
    """Idle but allocated GPU time, as a fraction of the allocated."""
    hardware = pick(result, "utilization", "hardware_ratio") if isinstance(result, dict) else None
    return None if hardware is None else 1 - hardware


def _utilization_panel(axis: Axes, series: Series, unit_s: float) -> None:
    t_s, allocation = steps(series.t_s, series.allocation_ratio, PANEL_POINTS)
    hardware = steps(series.t_s, series.hardware_ratio, PANEL_POINTS)[1]
    # an hour without allocated GPUs has no hardware ratio, and no activity
    work = np.where((allocation == 0) & np.isnan(hardware), 0.0, allocation * hardware)
    known = np.isfinite(work)
    t = t_s / unit_s
    for low, high, where, colour in (
        (np.zeros_like(work), allocation, ~known, "unknown"),
        (work, allocation, known, "gap"),
        (np.zeros_like(work), work, known, "work"),
    ):
        # a bin counts to its end, hence `where` also holds at the next one's start
        until = where | np.append(False, where[:-1])
        high_to, low_to = np.where(where, high, 0.0), np.where(where, low, 0.0)
        axis.fill_between(t, low_to * 100, high_to * 100, where=until, step="post", linewidth=0, color=COLOURS[colour])
    axis.step(t, allocation * 100, where="post", color=COLOURS["ink"], linewidth=0.9)
    axis.step(t, hardware * 100, where="post", color=COLOURS["ink"], linewidth=0.7, linestyle=(0, (1, 1.5)))


def _panel_title(axis: Axes, run: PolicyRun) -> None:
    """The policy's name, and under it its means."""
    shown = [
        (word, pick(run.result, "utilization", key))
        for word, key in (
            ("allocated", "allocation_ratio"),
            ("hardware", "hardware_ratio"),
            ("real", "real_utilization_ratio"),
        )
    ]
    means = ", ".join(f"{word} {value * 100:.0f} %" for word, value in shown if value is not None)
    axis.set_title(run.name, pad=18 if means else None)
    axis.text(0, 1.05, means, transform=axis.transAxes, color=COLOURS["quiet"], fontsize=8)


def _utilization_key(figure: Figure, wide: bool, measured: bool, blind: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: list[tuple[str, Patch | Line2D]] = [("allocated", Line2D([], [], color=COLOURS["ink"]))]
    if measured:
        entries = [
            ("at work (SM active)", Patch(color=COLOURS["work"])),
            ("allocated, idle: the gap", Patch(color=COLOURS["gap"])),
            *entries,
            ("hardware: at work / allocated", Line2D([], [], color=COLOURS["ink"], linestyle=(0, (1, 1.5)))),
        ]
    if blind:
        entries.append(("allocated, hardware not measured", Patch(color=COLOURS["unknown"])))
    names, marks = [name for name, _ in entries], [mark for _, mark in entries]
    figure.legend(marks, names, loc="outside upper left", ncols=len(entries) if wide else 1, columnspacing=1.4)


# --- waiting --------------------------------------------------------------------------------------


def waits_plot(data: ReportData) -> Plot | None:
    """Share of jobs waiting longer than a time, one curve per policy, both axes logarithmic."""
    runs = [run for run in ordered(data) if np.isfinite(run.waits_s).any()]
    if not runs:
        return None
    longest_s = max(10.0, *(float(np.nanmax(run.waits_s)) for run in runs))
    most = max(int(np.isfinite(run.waits_s).sum()) for run in runs)

    def draw(figure: Figure, wide: bool) -> None:
        figure.set_figheight(3.6 if wide else 3.2 + 0.32 * len(runs))
        axis = figure.subplots()
        for index, run in enumerate(runs):
            x, share = exceedance(run.waits_s)
            axis.step(x, share * 100, where="post", label=_wait_label(run), **line_style(index, len(runs)))
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(1, longest_s * 1.3)
        axis.set_ylim(max(100 / most, 0.001) * 0.8, 130)
        ticks = [t for t in WAIT_TICKS_S if t <= longest_s * 1.3]
        axis.set_xticks(ticks if wide else ticks[::2], [WAIT_TICKS_S[t] for t in (ticks if wide else ticks[::2])])
        axis.minorticks_off()
        shares = [p for p in (100.0, 10.0, 1.0, 0.1, 0.01) if p >= axis.get_ylim()[0]]
        axis.set_yticks(shares, [f"{p:g} %" for p in shares])
        axis.set_xlabel("wait before the first start")
        axis.set_ylabel("jobs that wait longer")
        figure.legend(loc="outside right upper" if wide else "outside lower left", ncols=1)

    p99 = [(run.name, format_duration(wait_s(run, 0.99))) for run in runs]
    title = f"One job in a hundred waits longer than {beside(p99)}"
    if all(wait_s(run, 0.99) < 1 for run in runs[:2]):
        title = f"Almost every job starts at once under {' and '.join(run.name for run in runs[:2])}"
    return Plot(
        name="waits",
        title=title,
        reading="The fraction of jobs (left) that wait longer than a time (below); a curve nearer to the lower "
        "left is better. Both scales are logarithmic; waits under a second are left of the plot. Jobs "
        "that never started are omitted.",
        draw=draw,
    )


def exceedance(waits_s: Floats) -> tuple[Floats, Floats]:
    """Times from 1 s on, and the fraction of longer waits among the known ones; at most 300 points."""
    waits = np.sort(waits_s[np.isfinite(waits_s)])
    top = max(float(waits[-1]), 1.0)
    grid = np.unique(np.append(np.geomspace(1.0, top, CURVE_POINTS - 1), top)) if top > 1 else np.array([1.0])
    share = 1 - np.searchsorted(waits, grid, side="right") / len(waits)
    return grid, np.where(share > 0, share, np.nan)


def wait_s(run: PolicyRun, share: float) -> float:
    """The wait not exceeded by `share` of the jobs: from the result, else sorted[int(share * n)]."""
    stated = pick(run.result, "jobs", f"queue_wait_s_p{share * 100:.0f}")
    waits = np.sort(run.waits_s[np.isfinite(run.waits_s)])
    return float(waits[int(share * len(waits))]) if stated is None else stated


def _wait_label(run: PolicyRun) -> str:
    half, most = (format_duration(wait_s(run, share)) for share in (0.5, 0.99))
    return f"{run.name}: half within {half},\n99 % within {most}"


# --- nodes over time ------------------------------------------------------------------------------


def heat_plot(data: ReportData) -> Plot | None:
    """Allocated share of each node over time, one panel per policy."""
    runs = [run for run in ordered(data) if run.heat.busy_ratio.size]
    if not runs:
        return None
    heats = [shrink_heat(run.heat) for run in runs]
    until_s = max(float(heat.t_edges_s[-1]) for heat in heats)
    rows = max(len(heat.node_ids) for heat in heats)

    def draw(figure: Figure, wide: bool) -> None:
        unit_s, label = time_axis(until_s)
        axes = panels(figure, len(runs), wide, min(max(1.5, 0.5 + rows * 0.06), 3.0))
        mesh = None
        for axis, run, heat in zip(axes, runs, heats, strict=True):
            axis.set_facecolor(COLOURS["unknown"])
            axis.grid(visible=False)
            mesh = axis.pcolormesh(
                heat.t_edges_s / unit_s,
                np.arange(len(heat.node_ids) + 1) - 0.5,
                np.ma.masked_invalid(heat.busy_ratio * 100),
                cmap="cividis",
                vmin=0,
                vmax=100,
                rasterized=True,
                linewidth=0,
            )
            axis.set_title(run.name)
            axis.set_xlim(0, until_s / unit_s)
            axis.set_ylim(rows - 0.5, -0.5)
            _node_ticks(axis, heat.node_ids)
        figure.supxlabel(label, fontsize=8.5, color=COLOURS["quiet"])
        if mesh is not None:
            down = -(-len(runs) // (columns_for(len(runs)) if wide else 1))
            where: dict[str, Any] = (
                {"location": "right", "aspect": 20 * down, "shrink": 0.9}
                if wide
                else {"location": "top", "aspect": 30, "pad": 0.08 / down}
            )
            bar = figure.colorbar(mesh, ax=axes, label="% allocated", **where)
            bar.outline.set_visible(False)

    return Plot(
        name="nodes",
        title=f"Node use over {format_duration(until_s)}",
        reading="A row is a node (or a group of neighbouring nodes in a large cluster), time runs to the right. "
        "Yellow is fully allocated, dark blue is free, grey is unknown or not in the cluster. Wholly "
        "dark rows are room for wide gangs; scattered dark spots are fragments.",
        draw=draw,
    )


def _node_ticks(axis: Axes, names: tuple[str, ...]) -> None:
    step = max(1, -(-len(names) // 10))
    at = list(range(0, len(names), step))
    short = [name.split(" to ")[0] for name in (names[i] for i in at)]
    axis.set_yticks(at, [name if len(name) <= 14 else f"…{name[-13:]}" for name in short])


# --- fragmentation --------------------------------------------------------------------------------


def fragmentation_plot(data: ReportData) -> Plot | None:
    """Free GPUs unusable for all waiting work, and the GPUs requested by waiting work, over time."""
    runs = [run for run in ordered(data) if np.isfinite(run.series.stranded_gpus).any()]
    if not runs:
        return None
    places = {run.name: index for index, run in enumerate(ordered(data))}
    until_s = max(end_s(run.series.t_s) for run in runs)
    means = {run.name: mean_of(run.series.stranded_gpus) or 0.0 for run in runs}

    def draw(figure: Figure, wide: bool) -> None:
        unit_s, label = time_axis(until_s)
        figure.set_figheight(4.6 if wide else 4.4 + 0.2 * len(runs))
        upper, lower = figure.subplots(2, 1, sharex=True)
        for run in runs:
            style = line_style(places[run.name], len(places))
            t, stranded = steps(run.series.t_s, run.series.stranded_gpus, WIDE_POINTS if wide else PANEL_POINTS)
            pending = steps(run.series.t_s, run.series.pending_gpus, WIDE_POINTS if wide else PANEL_POINTS)[1]
            name = f"{run.name}: {means[run.name]:.1f} GPUs on average"
            upper.step(t / unit_s, stranded, where="post", label=name, **style)
            lower.step(t / unit_s, pending, where="post", **style)
        upper.set_title("Stranded: free, but no waiting work fits")
        lower.set_title("Waiting: GPUs requested and not allocated")
        for axis in (upper, lower):
            axis.set_ylabel("GPUs")
            axis.set_ylim(bottom=0)
        lower.set_xlim(0, until_s / unit_s)
        lower.set_xlabel(label)
        figure.legend(loc="outside right upper" if wide else "outside lower left", ncols=1)

    shown = [(name, f"{value:.1f} GPUs") for name, value in means.items()]
    missing = [run.name for run in ordered(data) if run.name not in means]
    return Plot(
        name="fragmentation",
        title=f"Stranded on average: {beside(shown)}",
        reading="Stranded GPUs are those of waiting work that would fit if the free capacity had another shape. "
        + (f"Not measured for {', '.join(missing)}." if missing else ""),
        draw=draw,
    )
