"""Answers about a run with its journal elsewhere: the service gives its last tick, recent decisions and records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from autopilot.app.commands.ask_commands import check_place, print_lines
from autopilot.app.commands.decision_commands import DEFAULT_LIMIT, HEADINGS, Asked, cells
from autopilot.app.commands.json_out import write_json, write_lines
from autopilot.app.commands.run_commands import out, print_rows
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import format_duration
from autopilot.operate.client import Api

MOST = 1000
ELSEWHERE = "is in the journal, on the machine of the service"


def explain(api: Api, decision: str | None, workload: str | None, at_s: float | None, json_out: Path | None) -> None:
    """Explain the last tick, a recent decision, or a workload at the last tick."""
    if at_s is not None:
        raise InputError(f"--at: a past moment {ELSEWHERE}; leave it out for the last tick")
    check_place(json_out, ())
    if workload is not None:
        answer = api.ask("GET", f"/api/v1/workloads/{quote(workload, safe='/')}")
        document: dict[str, Any] = {"workload": answer["id"]}
    elif decision is None or decision.isdigit():
        answer = api.ask("GET", "/api/v1/tick")
        if decision is not None and int(decision) != answer["tick"]:
            raise InputError(f"{decision}: a past tick {ELSEWHERE}; the last one is {answer['tick']}")
        document = {"tick": answer["tick"], "at_s": answer["now_s"]}
    else:
        answer = api.ask("GET", f"/api/v1/decisions/{quote(decision, safe='/')}")
        document = {"decision": {name: value for name, value in answer.items() if name != "lines"}}
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/explain/1", **document, "lines": answer["lines"]})
    print_lines(answer["lines"], json_out)


def decisions(api: Api, asked: Asked) -> None:
    """Print matching recent decisions."""
    for flag, given in (("--follow", asked.follow), ("--since", asked.since), ("--until", asked.until)):
        if given:
            raise InputError(f"{flag}: the time before the last decisions {ELSEWHERE}; leave it out")
    check_place(asked.json, ())
    answer = f"&answer={asked.answer.value}" if asked.answer is not None else ""
    rows = api.ask("GET", f"/api/v1/decisions?limit={MOST}{answer}")["decisions"]
    found = [row for row in reversed(rows) if _matches(row, asked)]
    if asked.top is not None:
        worth = {"gain": "benefit_gpu_s", "loss": "lost_gpu_s"}[asked.top]
        found = sorted((row for row in found if (row[worth] or 0) > 0), key=lambda row: -row[worth])
    limit = (0 if asked.json is not None else DEFAULT_LIMIT) if asked.limit is None else asked.limit
    if limit:
        found = found[:limit] if asked.top is not None else found[-limit:]
    if asked.json is not None:
        write_lines(asked.json, found)
    elif found:
        print_rows(HEADINGS, [cells(row) for row in found])
    else:
        out.print(f"no decision among the last {len(rows):,} of the service matches")


def _matches(row: Mapping[str, Any], asked: Asked) -> bool:
    names = {row["workload"], *(victim["workload"] for victim in row["victims"])}
    wanted = asked.workload
    return (
        (asked.action is None or row["action"] == asked.action)
        and (asked.tenant is None or row["tenant"] == asked.tenant)
        and (wanted is None or any(name == wanted or name.endswith(f"/{wanted}") for name in names))
    )


def forecast(api: Api, name: str | None, at: str | None, picture: Path | None, json_out: Path | None) -> None:
    """Print the present forecast of a service, or of the expected mix without a name."""
    for flag, given in (("--at", at), ("--picture", picture)):
        if given is not None:
            raise InputError(f"{flag}: what was forecast before {ELSEWHERE}; leave it out for the present forecast")
    check_place(json_out, ())
    answer = api.ask("GET", "/api/v1/forecasts")
    if name is None:
        _print_mix(answer["mix"], json_out)
        return
    found = next((each for each in answer["services"] if each["name"] == name), None)
    if found is None:
        there = ", ".join(each["name"] for each in answer["services"]) or "none"
        raise InputError(f"{name}: no service of this name; there are {there}; the forecast of a job {ELSEWHERE}")
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/forecast/1", "name": name, "kind": "service", **found})
    lines = [f"service {name}"]
    for each in found["demand"]:
        lines.append(f"{each['kind'].replace('_per_s', ' a second')}: {each['model']}")
        if each["abstains"]:
            lines.append(f"  abstains: {each['abstains']}")
        for horizon_s, values in zip(each["horizons_s"], each["values"], strict=True):
            bounds = zip(each["levels"], values, strict=True)
            said = ", ".join(f"{value:.3g} at {level:g}" for level, value in bounds if value is not None)
            lines.append(f"  peak of the next {format_duration(horizon_s)}: {said or 'no forecast yet'}")
    print_lines(lines if found["demand"] else [*lines, "no forecast of its demand is made"], json_out)


def _print_mix(mix: Mapping[str, Any] | None, json_out: Path | None) -> None:
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/mix/1", "decision": mix})
    if mix is None or mix["reason"]:
        print_lines([f"no forecast of the mix: {mix['reason'] if mix else 'none is made'}"], json_out)
        return
    horizons = ", ".join(format_duration(horizon_s) for horizon_s in mix["horizons_s"])
    lines = [f"gangs that are expected within {horizons}, mean:"]
    for kind in mix["kinds"]:
        means = ", ".join("-" if mean is None else f"{mean:.2g}" for mean in kind["expected"])
        lines.append(f"  {kind['words']} on {kind['models']}: {means}")
    print_lines(lines, json_out)


@contextmanager
def fetched(api: Api, kind: str) -> Iterator[Path]:
    """A folder with copies of the metering or the audit log; a public key lies beside it, as on the machine of the
    service.
    """
    with TemporaryDirectory(prefix="gpu-autopilot-") as place:
        folder = Path(place) / kind
        folder.mkdir()
        for name in api.ask("GET", f"/api/v1/records/{kind}")["files"]:
            target = (folder.parent if name.endswith(".pub") else folder) / Path(name).name
            target.write_bytes(api.read(f"/api/v1/records/{kind}/{quote(name, safe='')}"))
        yield folder
