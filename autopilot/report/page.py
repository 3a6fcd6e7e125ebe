"""The page: sections in order, one self-contained HTML text, written to a folder with its plots."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import format_duration
from autopilot.files import put_in_place
from autopilot.report import html_tables, reproduced
from autopilot.report.advice import advice
from autopilot.report.charts import Picture, draw_all
from autopilot.report.data import ReportData
from autopilot.report.embedded import Part, packed, parts_of
from autopilot.report.markup import fold, pairs, text
from autopilot.report.plots import plots_of
from autopilot.report.summary import finder, summary
from autopilot.report.tiles import heading, tiles
from autopilot.report.words import (
    DURATIONS,
    PHYSICS,
    TELEMETRY,
    Statement,
    alarms,
    count,
    notes,
    ordered,
    pick,
)

PICTURES = ("utilization", "waits", "latency", "nodes", "fragmentation")
FOLDED = ("nodes", "fragmentation")
FURTHER_PAGE = re.compile(r"decisions-\d+\.html")


def render_page(data: ReportData) -> str:
    """The page as text. It makes no network requests: style, script and plots are embedded."""
    return _page(data, draw_all(plots_of(data), files=False), _parts(data))


def write_report(data: ReportData, folder: Path | str) -> Path:
    """Write `index.html`, further pages of decisions, and each plot as .svg and .png; returns the path of the page.

    Everything is written to a hidden folder inside first and then moved, the page last: a reader sees the old report or
    the new one. Plots and pages of an earlier report absent from this one are removed, other files stay. Raises
    `InputError` if `folder` cannot be written.
    """
    pictures = draw_all(plots_of(data), files=True)
    files = {f"{p.name}.svg": p.svg for p in pictures} | {f"{p.name}.png": p.png for p in pictures}
    parts = _parts(data)
    files |= {part.file: _further_page(data, part).encode("utf-8") for part in parts if part.file}
    files["index.html"] = _page(data, pictures, parts).encode("utf-8")
    target = Path(folder)
    try:
        _write(files, target)
    except OSError as error:
        raise InputError(
            f"report folder {str(target)!r} cannot be written ({error.strerror or error}); name a folder "
            "with write access"
        ) from error
    return target / "index.html"


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    partial: Path | None = None
    done = False
    try:
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
        for name, content in files.items():
            (partial / name).write_bytes(content)
        for name in files:
            put_in_place(partial / name, folder / name)
        old = [f"{picture}.{kind}" for picture in PICTURES for kind in ("svg", "png")]
        old += [page.name for page in folder.glob("decisions-*.html") if FURTHER_PAGE.fullmatch(page.name)]
        for name in old:
            if name not in files:
                (folder / name).unlink(missing_ok=True)
        done = True
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        if made and not done:
            shutil.rmtree(folder, ignore_errors=True)


# --- sections -----------------------------------------------------------------------------------------


def _parts(data: ReportData) -> tuple[Part, ...]:
    """All decisions of all runs, and their pages."""
    return parts_of([(run.name, run.decisions) for run in ordered(data) if run.decisions])


def _page(data: ReportData, pictures: tuple[Picture, ...], parts: tuple[Part, ...]) -> str:
    by_name = {picture.name: picture for picture in pictures}
    runs = ordered(data)
    sections = [
        section("next", "What to do next", _advice(data)),
        *_summaries(data, parts),
        *(drawn(by_name.get(name), folded=name in FOLDED) for name in PICTURES),
        folded("figures", "All figures by policy", html_tables.key_figures(data), _FIGURES_NOTE, opened=len(runs) > 2),
        folded(
            "reproduced", reproduced.TITLE, reproduced.section_body(data.reproduction), _REPRODUCED_NOTE, opened=True
        ),
        folded("fared", "Single jobs", html_tables.fared(data), _FARED_NOTE),
        folded("reservations", "Reservations", html_tables.reservations(data), _RESERVATIONS_NOTE),
        folded("tenants", "Tenants", html_tables.tenants(data), _TENANTS_NOTE),
        folded("causes", "Where the capacity went", html_tables.capacity_use(data), _CAUSES_NOTE),
        folded("use", "Use of the GPUs", html_tables.use(data), _USE_NOTE),
        folded("shape", "Free GPUs that cannot be used", html_tables.fragmentation(data), _SHAPE_NOTE),
        folded("decisions", "All decisions with their reasons", _decisions(parts), _DECISIONS_NOTE),
        folded("assumed", "What was assumed", _assumed(data)),
        folded("repeat", "How to repeat it", _repeat(data)),
    ]
    return document(data.title, "\n".join([_header(data), *(part for part in sections if part)]))


def _further_page(data: ReportData, part: Part) -> str:
    """A page of decisions beside the main one."""
    title = f"{data.title}: decisions of {part.run} from {part.first:,} on"
    back = '<p><a href="index.html">Back to the report</a></p>'
    body = section("decisions", title, back + finder(part, packed(part.rows), ()))
    return document(title, body)


def document(title: str, body: str) -> str:
    """A page without network requests, around its body."""
    folder = resources.files("autopilot.report")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n<body>\n<main>\n"
        f"{body}\n</main>\n<script>{script}</script></body></html>\n"
    )


def _advice(data: ReportData) -> str:
    """Suggested changes for each run with decisions."""
    runs = [run for run in ordered(data) if run.decisions]
    lists = {run.name: "".join(f"<li>{text(line)}</li>" for line in advice(run)) for run in runs}
    return "".join(
        (f"<h3>{text(name)}</h3>" if len(lists) > 1 else "") + f'<ol class="advice">{lines}</ol>'
        for name, lines in lists.items()
    )


def _summaries(data: ReportData, parts: tuple[Part, ...]) -> list[str]:
    """For each run with decisions: actions and reasons; the subject's first, the others folded."""
    found = []
    for number, run in enumerate([run for run in ordered(data) if run.decisions]):
        body = summary(run, [part for part in parts if part.run == run.name])
        title = f"What {run.name} did, and why"
        found.append(folded(f"summary-{number + 1}", title, body) if number else section("summary", title, body))
    return found


_FIGURES_NOTE = "The best of each row is bold. A dash means that the figure does not apply or was not measured."
_REPRODUCED_NOTE = (
    "Check this before any answer about another cluster: a baseline that is far from the recorded starts does not "
    "stand for the site."
)
_FARED_NOTE = (
    "A mean hides the jobs that pay for it. First the jobs that ended more than a minute after their end under the "
    "baseline, then those that waited longest. Evictions are all stops after which the job waited again, including "
    "moves."
)
_RESERVATIONS_NOTE = (
    "A reservation holds room for a wide gang while smaller work fills the gap. Kept: the gang started in "
    "time; late: after the promised time; released: given up after its timeout."
)
_DECISIONS_NOTE = (
    "Every decision, as listed by autopilot decisions: consecutive ticks that repeat a proposal with the "
    "same verdict are listed once. autopilot explain prints all details for an id."
)
_CAUSES_NOTE = (
    "Shares of the capacity until the last arrival; each column adds up to 100 %. Beside each policy stands the most "
    "that any schedule of the same work could reach: work of the highest SM activity runs first, and the GPUs of an "
    "owner who is away serve other work. Replicas of services count as the policy ran them. Repeated work counts as "
    "active each time."
)
_USE_NOTE = (
    "What each group did with the GPUs that it held over the whole run. Hardware is the SM-active part of what it "
    "held, real the SM-active part of the capacity (of its own GPUs for a pool, else of the cluster). The gap is what "
    "it held without SM activity; the largest comes first. A queue includes the queues below it. Of the workloads of "
    "a policy those with the largest gap are shown; replicas count in their service."
)
_SHAPE_NOTE = (
    "The fragmentation index is the share of the free GPUs that the expected demand mix cannot use, as a mean over the "
    "hours of the run. Its parts by cause add up to it. A dash means that the mix was unknown."
)
_TENANTS_NOTE = "Means per job. Slowdown compares with the tenant alone on its own guarantee."


def _header(data: ReportData) -> str:
    nodes, gpus = data.cluster.get("nodes"), data.cluster.get("gpus")
    facts = [
        f"{count(gpus)} GPUs on {count(nodes)} nodes" if gpus else "",
        f"physics {data.physics}",
        f"durations {data.durations}",
        f"telemetry {data.telemetry}",
        f"seed {data.seed}",
        f"gpu-autopilot {data.version}" if data.version else "",
        f"written {data.written}" if data.written else "",
        f"input {data.digest}" if data.digest else "",
    ]
    bad, below = ("".join(f"<li>{text(line)}</li>" for line in lines) for lines in (alarms(data), notes(data)))
    return (
        f'<header><p class="title">{text(data.title)}</p><h1>{text(heading(data))}</h1>'
        f'<p class="facts">{text(" · ".join(f for f in facts if f))}</p>'
        + (f'<ul class="alarms">{bad}</ul>' if bad else "")
        + tiles(data)
        + (f'<ul class="notes">{below}</ul>' if below else "")
        + "</header>"
    )


def section(name: str, title: str, body: str, note: str = "") -> str:
    """One section of a page; empty without a body."""
    if not body:
        return ""
    return f'<section id="{name}"><h2>{text(title)}</h2>{f"<p>{text(note)}</p>" if note else ""}{body}</section>'


def folded(name: str, title: str, body: str, note: str = "", *, opened: bool = False) -> str:
    """A section with its title alone until it is opened; empty without a body."""
    if not body:
        return ""
    inside = f"{f'<p>{text(note)}</p>' if note else ''}{body}"
    return f'<section id="{name}">{fold(f"<h2>{text(title)}</h2>", inside, opened)}</section>'


def drawn(picture: Picture | None, *, folded: bool = False) -> str:
    """The section of a plot; empty without one."""
    if picture is None:
        return ""
    alt = f"{picture.title}. {picture.reading}"
    head = f"<h2>{text(picture.title)}</h2>"
    body = (
        f'<p>{text(picture.reading)}</p><figure role="img" aria-label="{text(alt)}"><div class="wide">{picture.wide}'
        f'</div><div class="narrow">{picture.narrow}</div></figure>'
    )
    return f'<section id="{picture.name}">{fold(head, body) if folded else head + body}</section>'


def statement(said: Statement) -> str:
    """A figure as a chip: word, sign and colour tell better from worse than in the reference."""
    if said.better is None:
        return f"<li>{text(said.words)}</li>"
    kind, mark = ("better", "▲ better") if said.better else ("worse", "▼ worse")
    return f'<li class="{kind}">{text(said.words)} <b>{mark}</b></li>'


def _decisions(parts: tuple[Part, ...]) -> str:
    """The search over each run's decisions, with links to further pages if one is not enough."""
    return "".join(
        finder(part, packed(part.rows), [other for other in parts if other.run == part.run and other.file])
        for part in parts
        if not part.file
    )


def _assumed(data: ReportData) -> str:
    lines = [
        f"Physics {data.physics}: {PHYSICS.get(data.physics, 'as given')}.",
        f"Durations {data.durations}: {DURATIONS.get(data.durations, 'as given')}.",
        f"Telemetry {data.telemetry}: {TELEMETRY.get(data.telemetry, 'as given')}.",
        *data.notes,
    ]
    parts = ["<ul>", *(f"<li>{text(line)}</li>" for line in lines), "</ul>"]
    if data.assumed:
        rows = [(column, f"{n:,}" if isinstance(n, int) else n) for column, n in data.assumed.items()]
        parts.append("<h3>Filled in where the input had no value</h3>")
        parts.append(pairs("Assumed values", ("Column", "Rows"), rows))
    left_out = _left_out(data)
    if left_out:
        parts.append("<h3>Rows of the input that could not be used</h3>")
        parts.append(pairs("Unusable rows", ("Reason", "Rows"), left_out))
    for run in ordered(data):
        if run.policy_diff:
            parts.append(f"<h3>Where {text(run.name)} differs from the shipped policy</h3>")
            parts.append(pairs(f"Policy {run.name}", ("Field", "Shipped", "This run"), run.policy_diff))
    return "".join(parts)


def _left_out(data: ReportData) -> list[tuple[str, str]]:
    """Reasons and counts; the input is the same for every policy, so the first policy with a statement of it
    is used.
    """
    for run in ordered(data):
        jobs = run.result.get("jobs")
        reasons = jobs.get("unusable_by_reason") if isinstance(jobs, Mapping) else None
        if isinstance(reasons, Mapping) and reasons:
            return [(str(reason), count(pick(reasons, reason))) for reason in reasons]
    return []


def _repeat(data: ReportData) -> str:
    walls = [(run.name, w) for run in ordered(data) if (w := pick(run.result, "wall_s")) is not None]
    took = ", ".join(f"{text(name)} {text(format_duration(w))}" for name, w in walls)
    command = f'<pre tabindex="0"><code>{text(data.command)}</code></pre>' if data.command else ""
    same = "<p>The same command with the same files and seed gives the same figures.</p>" if command else ""
    return command + same + (f"<p>Simulation time: {took}.</p>" if took else "")
