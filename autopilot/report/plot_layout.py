"""Common axes, steps, line styles and panels of the plots."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.report.charts import DASHES, SERIES
from autopilot.report.data import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_POINTS = 300
WIDE_POINTS = 300
PANEL_POINTS = 150


def time_axis(until_s: float) -> tuple[float, str]:
    """Seconds per unit and label of a time axis up to `until_s`."""
    for unit_s, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if until_s >= 2 * unit_s:
            return unit_s, f"{name} since the start"
    return 1.0, "seconds since the start"


def end_s(t_s: Floats) -> float:
    """The end of the last of several bins of equal width."""
    return float(2 * t_s[-1] - t_s[-2]) if len(t_s) > 1 else float(t_s[-1]) + 1.0 if len(t_s) else 0.0


def steps(t_s: Floats, values: Floats, points: int, *, worst: bool = False) -> tuple[Floats, Floats]:
    """A step function for drawing: at most `points` steps, the last drawn to its end.

    Neighbouring bins are joined to the mean of the known values, or with `worst` to their maximum, so a breach stays
    visible.
    """
    firsts = np.arange(0, len(t_s), -(-len(t_s) // points))
    if worst:
        joined = np.fmax.reduceat(values, firsts)
    else:
        known = np.isfinite(values)
        area = np.add.reduceat(np.where(known, values, 0.0), firsts)
        weight = np.add.reduceat(known.astype(float), firsts)
        joined = np.divide(area, weight, out=np.full(len(firsts), np.nan), where=weight > 0)
    return np.append(t_s[firsts], end_s(t_s)), np.append(joined, joined[-1:])


def line_style(index: int, count: int) -> dict[str, Any]:
    """Colour, dashes and width of policy number `index` of `count` in the page's order.

    The first two stand out. With many policies the others recede.
    """
    lap, colour = divmod(index - 1, len(SERIES) - 1)
    return {
        "color": SERIES[0] if index == 0 else SERIES[1 + colour],
        "linestyle": DASHES[(index + 4 * max(lap, 0)) % len(DASHES)],
        "linewidth": 2.0 if index == 0 else 1.2 if index == 1 or count <= 4 else 0.8,
        "alpha": 1.0 if index < 2 or count <= 4 else 0.6,
        "zorder": 3 - min(index, 2) / 4,
    }


def columns_for(count: int, most: int = 3) -> int:
    """Number of columns for `count` panels."""
    return 2 if count in (2, 4) else min(count, most)


def panels(figure: Figure, count: int, wide: bool, height_in: float, most: int = 3, head_in: float = 0.5) -> list[Axes]:
    """`count` axes with common scales, up to `most` side by side; sets the figure's height."""
    columns = columns_for(count, most) if wide else 1
    rows = -(-count // columns)
    figure.set_figheight(rows * height_in + head_in)
    figure.set_layout_engine("constrained", wspace=0.05)  # room between the last and first tick of neighbours
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    for above in axes[max(count - columns, 0) : count]:
        above.tick_params(labelbottom=True)
    return axes[:count]


def beside(parts: list[tuple[str, str]]) -> str:
    """`A under x (y: B)` of the first two pairs of policy and figure."""
    (name, figure), rest = parts[0], parts[1:2]
    return f"{figure} under {name}" + "".join(f" ({other}: {theirs})" for other, theirs in rest)


def quantile_words(value: float | None) -> str:
    """A latency within a sentence: `340 ms`, `2.1 s`; `-` for unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
