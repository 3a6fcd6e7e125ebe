"""Plots of forecasts against outcomes, with exceeded bounds marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from autopilot.core.model.snapshot import F64
from autopilot.report.charts import COLOURS, SERIES, Plot
from autopilot.report.plot_layout import time_axis
from autopilot.report.plots import WAIT_TICKS_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_JOBS = 400
HEIGHT_IN = 3.4


def demand_plot(service: str, what: str, made_s: F64, bounds: dict[float, F64], came: F64, horizon_s: float) -> Plot:
    """Upper bounds of the peak until `made_s + horizon_s` [forecasts] by level, and the observed peak."""

    def draw(figure: Figure, wide: bool) -> None:
        figure.set_figheight(HEIGHT_IN)
        axis = figure.subplots()
        unit_s, label = time_axis(float(made_s[-1]) if len(made_s) else 0.0)
        at = made_s / unit_s
        for index, (level, values) in enumerate(sorted(bounds.items(), reverse=True)):
            axis.plot(at, values, color=SERIES[index % len(SERIES)], linewidth=1.2, label=f"promised, {level:g}")
        axis.plot(at, came, color=COLOURS["ink"], linewidth=1.0, label="came")
        top = bounds[max(bounds)]
        over = np.isfinite(came) & (came > top)
        axis.plot(
            at[over],
            came[over],
            linestyle="",
            marker="x",
            color=COLOURS["s2"],
            label="above the highest bound",
        )
        axis.set_ylim(bottom=0)
        axis.set_xlabel(label)
        axis.set_ylabel(what)
        _key(axis, wide)

    minutes = horizon_s / 60.0
    return Plot(
        name="forecast-demand",
        title=f"{service}: forecast and observed peak of the next {minutes:g} min",
        reading="Each point is at the time of its forecast. A cross is a peak above the highest bound.",
        draw=draw,
    )


def jobs_plot(
    job: str,
    made_s: F64,
    low_s: F64,
    middle_s: F64,
    high_s: F64,
    came_s: F64,
    own: int | None,
    levels: tuple[float, float],
) -> Plot:
    """Forecast bands and actual run times, of jobs in the order of their forecasts; `own`: the row of `job`."""
    first = max(len(made_s) - SHOWN_JOBS, 0)
    rows = np.arange(first, len(made_s))

    def draw(figure: Figure, wide: bool) -> None:
        figure.set_figheight(HEIGHT_IN)
        axis = figure.subplots()
        places = rows - first
        axis.vlines(
            places,
            low_s[rows],
            high_s[rows],
            color=COLOURS["unknown"],
            linewidth=1.2,
            label=f"promised, {levels[0]:g} to {levels[1]:g}",
        )
        axis.plot(places, middle_s[rows], linestyle="", marker="_", color=COLOURS["quiet"], label="promised, middle")
        over = came_s[rows] > high_s[rows]
        axis.plot(places[~over], came_s[rows][~over], linestyle="", marker=".", color=SERIES[0], label="came")
        axis.plot(
            places[over],
            came_s[rows][over],
            linestyle="",
            marker="x",
            color=SERIES[1],
            label="above the band",
        )
        if own is not None and own >= first:
            axis.axvline(own - first, color=COLOURS["ink"], linewidth=0.8, linestyle=":", label=job)
        axis.set_yscale("log")
        least, most = np.nanmin(low_s[rows]), np.nanmax([high_s[rows], came_s[rows]])
        ticks = {at_s: words for at_s, words in WAIT_TICKS_S.items() if least / 3 <= at_s <= 3 * most}
        axis.set_yticks(list(ticks), list(ticks.values()))
        axis.minorticks_off()
        axis.set_xlabel("jobs in the order of their first forecast")
        axis.set_ylabel("run time")
        _key(axis, wide)

    return Plot(
        name="forecast-jobs",
        title="Run times: forecast when a job was first seen, and actual",
        reading="A bar is the forecast band of one job, a dot its actual run time; crosses lie above the band.",
        draw=draw,
    )


def _key(axis: Axes, wide: bool) -> None:
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.18), ncols=4 if wide else 2)


def as_array(values: Sequence[float]) -> F64:
    """A column of numbers."""
    return np.asarray(values, float)
