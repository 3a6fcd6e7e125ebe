"""Implementation of `autopilot forecast`: print the forecasts in a journal and their reliability, and plot them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.commands.ask_commands import check_place, print_lines
from autopilot.app.commands.json_out import STDOUT, write_json
from autopilot.app.commands.run_commands import print_rows, progress_bar
from autopilot.app.decisions.foreseen import (
    Coverage,
    DemandRecord,
    JobNow,
    JobPromise,
    JobRecord,
    coverage,
    read_foreseen,
    span_words,
)
from autopilot.app.decisions.hazards_seen import HEADINGS, JobHazards, hazard_document, hazard_rows
from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import REQUESTS
from autopilot.core.model.snapshot import State
from autopilot.core.model.units import counted, format_duration, parse_duration_s
from autopilot.files import check_output, state_folder, write_bytes
from autopilot.report.charts import Plot

ENDINGS = (".svg", ".png")
NO_DEMAND = (
    "this journal holds no forecasts of demand: the run made none (services were scaled by measured load, "
    "or an older version wrote the journal)"
)
_STATES = {
    State.PENDING: "waits",
    State.STARTING: "starts",
    State.RUNNING: "runs",
    State.CHECKPOINTING: "is leaving",
    State.SUCCEEDED: "has ended",
    State.FAILED: "has failed",
}


def run_forecast(path: Path, name: str, at: str | None, picture: Path | None, json_out: Path | None) -> None:
    """Print the forecast for a service or job from a journal, and plot past forecasts against outcomes."""
    at_s = None if at is None else parse_duration_s(at, "--at")
    check_place(json_out, (path,))
    place = _picture_place(picture, path)
    with progress_bar() as show:
        found = read_foreseen(
            path, name, at_s, lambda done, total: show("reading", done, total, f"{done:,}/{total:,} ticks")
        )
    if isinstance(found, JobRecord):
        document, lines, plot = _job(found)
    else:
        document, lines, plot = _service(found)
    if plot is not None and (picture is not None or json_out != STDOUT):
        lines.append(f"picture: {_draw(plot, place, name)}")
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/forecast/1", "name": name, **document})
    print_lines(lines, json_out)
    if isinstance(found, JobRecord) and found.hazards is not None and json_out != STDOUT:
        print_rows(HEADINGS, hazard_rows(found.hazards), figures=True)


def _picture_place(given: Path | None, journal: Path) -> Path | None:
    """Path of the picture, checked; None: the state folder. Raises `InputError` for an unusable path."""
    if given is None:
        return None
    if given.suffix not in ENDINGS:
        raise InputError(f"--picture: {given} must end in .svg or .png")
    check_output(given, "--picture")
    if given.resolve() == journal.resolve():
        raise InputError(f"--picture: {given} is the journal; name another file")
    return given


def _draw(plot: Plot, place: Path | None, name: str) -> Path:
    from autopilot.report.charts import draw_all

    if place is None:
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[:80]
        place = state_folder() / "forecasts" / f"{safe.strip('.') or 'forecast'}.svg"
    (picture,) = draw_all((plot,), files=True)
    write_bytes(picture.png if place.suffix == ".png" else picture.svg, place)
    return place


# --- a job ------------------------------------------------------------------------------------------


def _job(found: JobRecord) -> tuple[dict[str, Any], list[str], Plot | None]:
    now = found.now
    assert now is not None  # noqa: S101 - a record without it is refused at its reading
    after = f" after {format_duration(now.ran_s)} on its GPUs" if now.ran_s else ""
    lines = [
        f"job {now.job} of {now.tenant}, {counted(now.gpus, 'GPU')}: {_STATES[now.state]}{after} "
        f"at {format_duration(now.at_s)}"
    ]
    ended = now.state >= State.SUCCEEDED
    if not now.total_s and not ended:
        why = f"the model {now.model} abstains: no similar job has ended yet" if now.model else "this run made none"
        lines.append(f"no run-time forecast: {why}")
    else:
        lines.append(f"forecast of {now.model}, from {now.history} ended jobs, made at {format_duration(now.made_s)}")
        lines.append(f"  total run time: {_band(now.levels, now.total_s)}")
        if now.ran_s:
            lines.append(f"  remaining:      {_band(now.levels, now.left_s)}")
    own = next((each for each in found.promises if each.job == now.job), None)
    if own is not None and np.isfinite(own.came_s):
        lines.append(
            f"it ran {format_duration(own.came_s)}; forecast by {own.model} at "
            f"{format_duration(own.made_s)}, from {own.history} ended jobs:"
        )
        lines.append(f"  total run time: {_band(own.levels, own.total_s)}")
    elif ended:
        lines.append("no run-time forecast is recorded: the job ended before one was made")
    kept = {
        "all": _kept_jobs(found.promises),
        now.tenant: _kept_jobs([p for p in found.promises if p.tenant == now.tenant]),
    }
    lines += _kept_lines(kept, "jobs that have ended")
    beyond = sum(not np.isfinite(each.came_s) for each in found.promises)
    if beyond:
        lines.append(f"  {beyond} more forecasts are open: those jobs have not ended, and long jobs end last")
    lines += _hazard_lines(found.hazards, now)
    document = {
        "kind": "job",
        "state": now.state.name.lower(),
        "at_s": now.at_s,
        "ran_s": now.ran_s,
        "model": now.model,
        "made_s": now.made_s,
        "levels": list(now.levels),
        "total_s": list(now.total_s),
        "left_s": list(now.left_s),
        "history": now.history,
        "came_s": own.came_s if own is not None and np.isfinite(own.came_s) else None,
        "delivered": {group: _plain(each) for group, each in kept.items()},
        "open_promises": beyond,
        "hazard_index_per_s": _finite(now.index_per_s),
        "hazards": None if found.hazards is None else hazard_document(found.hazards),
    }
    return document, lines, _jobs_picture(found.promises, now.job)


def _hazard_lines(found: JobHazards | None, now: JobNow) -> list[str]:
    """The recorded hazard index, and the lines above the table of hazards."""
    lines = []
    if np.isfinite(now.index_per_s):
        lines.append(f"hazard index in the run: {3600.0 * now.index_per_s:.3g} per hour")
    if found is None:
        return [*lines, "hazards by age: unknown, too few jobs have ended in this journal"]
    width = counted(now.gpus, "GPU")
    return [
        *lines,
        f"hazards by age of {now.tenant}, {width}, counted from this journal at {format_duration(found.at_s)} "
        f"({found.ended} of its jobs have ended); reached: share of jobs of this age that run so long:",
    ]


def _kept_jobs(promises: list[JobPromise]) -> list[Coverage]:
    return coverage([(each.levels, each.total_s, each.came_s) for each in promises])


def _band(levels: tuple[float, ...], values_s: tuple[float, ...]) -> str:
    """Median and outer quantiles as text."""
    middle = values_s[_nearest(levels, 0.5)]
    high = _nearest(levels, 0.9)
    band = span_words(values_s[0], values_s[-1])
    return (
        f"{format_duration(middle)} median, {format_duration(values_s[high])} at {levels[high]:g}; from "
        f"{band} ({levels[0]:g} to {levels[-1]:g})"
    )


def _nearest(levels: tuple[float, ...], wanted: float) -> int:
    return min(range(len(levels)), key=lambda at: abs(levels[at] - wanted))


def _jobs_picture(promises: list[JobPromise], job: str) -> Plot | None:
    from autopilot.report.foresight import as_array, jobs_plot

    shown = [each for each in promises if np.isfinite(each.came_s) or each.job == job]
    if not shown:
        return None
    levels = shown[-1].levels
    places = (0, _nearest(levels, 0.5), len(levels) - 1)
    shown = [each for each in shown if each.levels == levels]
    low, middle, high = (as_array([each.total_s[at] for each in shown]) for at in places)
    own = next((row for row, each in enumerate(shown) if each.job == job), None)
    return jobs_plot(
        job,
        as_array([p.made_s for p in shown]),
        low,
        middle,
        high,
        as_array([p.came_s for p in shown]),
        own,
        (levels[0], levels[-1]),
    )


# --- a service --------------------------------------------------------------------------------------


def _service(records: list[DemandRecord]) -> tuple[dict[str, Any], list[str], Plot | None]:
    name = records[0].service
    lines = [f"service {name}"]
    document: dict[str, Any] = {"kind": "service", "demand": {}}
    if all(record.last is None for record in records):
        return document, [*lines, NO_DEMAND], None
    for record in records:
        document["demand"][record.kind] = _demand(record, lines)
    drawn = next((each for each in records if each.kind == REQUESTS and each.promises), None)
    drawn = drawn or next((each for each in records if each.promises), None)
    return document, lines, None if drawn is None else _demand_picture(drawn)


def _demand(record: DemandRecord, lines: list[str]) -> dict[str, Any]:
    """The lines for one kind of demand, and the same as JSON."""
    last, row = record.last, record.row
    assert last is not None  # noqa: S101 - records are made with their first forecast
    unit = record.kind.replace("_per_s", " a second")
    model = last.chosen[row] if last.chosen else last.model
    age_s = record.rates[-1][0] - last.made_s if record.rates else float("nan")
    history = f", from {int(last.history[row])} observations" if len(last.history) else ""
    lines.append(
        f"{unit}: {model}{history}, made at {format_duration(last.made_s)}, {format_duration(max(age_s, 0.0))} old"
    )
    values = last.values[row]
    reason = last.reasons[row] if last.reasons else ""
    if not np.isfinite(values).any():
        lines.append(f"  abstains: {reason or 'no reason recorded'}")
    else:
        for at, horizon_s in enumerate(last.horizons_s):
            known = [
                (value, level)
                for level, value in zip(last.levels, values[at].tolist(), strict=True)
                if np.isfinite(value)
            ]
            bounds = ", ".join(f"{_rate(value)} at {level:g}" for value, level in known)
            lines.append(f"  peak of the next {format_duration(horizon_s)}: {bounds or 'no forecast yet'}")
        if reason:
            lines.append(f"  incomplete: {reason}")
    if reason and np.isfinite(record.whole_s):
        lines.append(
            f"  the last complete forecast was made at {format_duration(record.whole_s)}: --at "
            f"{np.ceil(record.whole_s):.0f}s shows it"
        )
    drifting = bool(last.drifting[row]) if len(last.drifting) else None
    if drifting:
        lines.append("  drift: the errors of this model have left their usual range")
    kept = {f"{horizon_s:g}": _kept_demand(record, horizon_s) for horizon_s in last.horizons_s}
    named = {f"next {format_duration(float(horizon))}": each for horizon, each in kept.items()}
    lines += _kept_lines(named, "matured forecasts of this run")
    for why, count in sorted(record.abstained.items(), key=lambda each: -each[1]):
        lines.append(f"  abstained {count} times: {why}")
    return {
        "model": model,
        "made_s": last.made_s,
        "horizons_s": list(last.horizons_s),
        "levels": list(last.levels),
        "values": [[_finite(value) for value in line] for line in values.tolist()],
        "reason": reason,
        "drifting": drifting,
        "delivered": {horizon: _plain(each) for horizon, each in kept.items()},
        "abstained": record.abstained,
    }


def _rate(value: float) -> str:
    """A rate as text; rounded to 0 when negligible."""
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"


def _kept_demand(record: DemandRecord, horizon_s: float) -> list[Coverage]:
    return coverage([(p.levels, p.values, p.came) for p in record.promises if p.horizon_s == horizon_s])


def _demand_picture(record: DemandRecord) -> Plot | None:
    from autopilot.report.foresight import as_array, demand_plot

    last = record.last
    assert last is not None  # noqa: S101 - as above
    # the horizon with the most matured forecasts, the longest of those
    horizon_s = max(
        last.horizons_s, key=lambda h: (sum(p.horizon_s == h and np.isfinite(p.came) for p in record.promises), h)
    )
    shown = [p for p in record.promises if p.horizon_s == horizon_s and p.levels == last.levels]
    if not shown:
        return None
    bounds = {level: as_array([p.values[at] for p in shown]) for at, level in enumerate(last.levels)}
    return demand_plot(
        record.service,
        record.kind.replace("_per_s", " a second"),
        as_array([p.made_s for p in shown]),
        bounds,
        as_array([p.came for p in shown]),
        horizon_s,
    )


# --- both -------------------------------------------------------------------------------------------


def _kept_lines(kept: dict[str, list[Coverage]], what: str) -> list[str]:
    if not any(kept.values()):
        return [f"past coverage: unknown yet, there are no {what}"]
    lines = [f"past coverage ({what}; nominal: observed):"]
    for group, each in kept.items():
        if each:
            shares = ", ".join(f"{one.level:g}: {one.share:.3f}" for one in each)
            lines.append(f"  {group} ({each[0].count}): {shares}")
    return lines


def _plain(kept: list[Coverage]) -> list[dict[str, float]]:
    return [{"promised": each.level, "delivered": each.share, "count": each.count} for each in kept]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
