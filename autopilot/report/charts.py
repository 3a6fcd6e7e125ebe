"""Renders a plot at a size, saves it, and embeds it into a page, light or dark, wide or narrow.

A plot is drawn twice, wide for desktops and files, narrow for phones; the page shows the fitting one. Colours are drawn
in their light values; inside the page each becomes a variable of the style sheet, with a light and a dark value.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 130
RASTER_DPI = 110
WIDE_IN = 11.0
NARROW_IN = 3.9
TITLE_LETTERS = 100

# name of the variable in style.css -> light value
COLOURS = {
    "ink": "#1c2127",
    "quiet": "#5b6570",
    "grid": "#dfe3e8",
    "paper": "#fefefe",
    "unknown": "#c9ced4",
    "work": "#0b6fb0",
    "gap": "#f3b58a",
    "s1": "#0072b2",
    "s2": "#d55e01",
    "s3": "#00875f",
    "s4": "#a8449a",
    "s5": "#8a6d00",
    "s6": "#2a9bc4",
    "s7": "#7a4b2b",
    "s8": "#6b7281",
}
SERIES = tuple(COLOURS[f"s{i}"] for i in range(1, 9))
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1.2)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (1, 2)),
)

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["quiet"],
    "axes.facecolor": COLOURS["paper"],
    "axes.grid": True,
    "axes.labelcolor": COLOURS["quiet"],
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "figure.facecolor": COLOURS["paper"],
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 8.5,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["ink"],
    "lines.linewidth": 1.4,
    "path.simplify_threshold": 0.3,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a tenant may be called $x$
    "xtick.color": COLOURS["quiet"],
    "xtick.labelsize": 8,
    "ytick.color": COLOURS["quiet"],
    "ytick.labelsize": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The content of a plot, independent of size. `title` states the finding, `reading` explains the axes."""

    name: str
    title: str
    reading: str
    draw: Callable[[Figure, bool], None]
    """draws on an empty figure of a given width, and sets its height; True: the wide one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A rendered plot: SVG for the page, without its title, and the content of files, with the title inside."""

    name: str
    title: str
    reading: str
    wide: str
    narrow: str
    svg: bytes = b""
    png: bytes = b""


def draw_all(plots: tuple[Plot, ...], *, files: bool) -> tuple[Picture, ...]:
    """Draw each plot; the content of files only if `files` is set."""
    return tuple(_picture(plot, files) for plot in plots)


def _picture(plot: Plot, files: bool) -> Picture:
    import matplotlib as mpl

    with mpl.rc_context({**STYLE, "svg.hashsalt": plot.name}), warnings.catch_warnings():
        # a name may hold characters that the bitmap's font lacks; the browser has its own fonts
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        wide, narrow = _figure(plot, True), _figure(plot, False)
        picture = Picture(
            name=plot.name,
            title=plot.title,
            reading=plot.reading,
            wide=inline_svg(_saved(wide, "svg").decode(), f"{plot.name}-w"),
            narrow=inline_svg(_saved(narrow, "svg").decode(), f"{plot.name}-n"),
        )
        if not files:
            return picture
        head = textwrap.wrap(plot.title, TITLE_LETTERS)
        _write_above(wide, "\n".join(head))
        svg, png = (_saved(wide, kind, plot.title, head_in=0.06 + 0.21 * len(head)) for kind in ("svg", "png"))
        return replace(picture, svg=svg, png=png)


def _figure(plot: Plot, wide: bool) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE_IN if wide else NARROW_IN, 3.0), layout="constrained")
    plot.draw(figure, wide)
    return figure


def _write_above(figure: Figure, title: str) -> None:
    """Put a title above the figure's edge; legends, anchored to that edge, keep their place."""
    for legend in figure.legends:
        corner = legend.get_window_extent().transformed(figure.transFigure.inverted())
        legend.borderaxespad = 0
        legend.set_loc("lower left")
        legend.set_bbox_to_anchor((corner.x0, corner.y0), transform=figure.transFigure)
    figure.text(0.007, 1.0, title, fontsize=11, fontweight="bold", verticalalignment="bottom")


def _saved(figure: Figure, kind: str, title: str | None = None, head_in: float = 0.0) -> bytes:
    """The figure, and `head_in` above it, as the content of a file without timestamp or creator."""
    from matplotlib.transforms import Bbox

    target = io.BytesIO()
    unnamed = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    box = Bbox.from_bounds(0, 0, figure.get_figwidth(), figure.get_figheight() + head_in) if head_in else None
    figure.savefig(
        target,
        format=kind,
        dpi=PNG_DPI if kind == "png" else RASTER_DPI,
        metadata={"Title": title, **unnamed} if title else unnamed,
        bbox_inches=box,
    )
    figure.set_layout_engine("none")  # the first save has laid it out, a second need not
    return target.getvalue()


def inline_svg(svg: str, prefix: str) -> str:
    """The `<svg>` element alone, ready to embed in a page beside others.

    Its ids are prefixed, its colours become variables of the style sheet, its size is left to the page; declarations,
    metadata and name spaces are removed, and with them every URL.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    head, rest = body.split(">", 1)
    head = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", head)
    body = f'{head} aria-hidden="true" focusable="false">{rest}'
    # only inside tags: a name in a text may look like an attribute
    return re.sub(r"<[^>]+>", lambda tag: _own(tag[0], prefix), body).strip()


def _own(tag: str, prefix: str) -> str:
    """A tag with its ids and references prefixed, and with variables for its colours."""
    tag = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{prefix}-", tag)
    return re.sub(r'style="[^"]*"', _with_variables, tag)


def _with_variables(style: re.Match[str]) -> str:
    text = style[0]
    for name, value in COLOURS.items():
        text = text.replace(value, f"var(--{name})")
    return text
