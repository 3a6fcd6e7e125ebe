"""A simulation as report data, and its headline."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from importlib import resources
from importlib.metadata import version as version_of
from pathlib import Path

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import PolicyOutcome, SimulationOutcome
from autopilot.core.model.units import counted, format_duration
from autopilot.report.data import NO_HEAT, NO_SERIES, PolicyRun, ReportData
from autopilot.report.words import headline as headline_of
from autopilot.report.words import refused_words
from simulator.baselines.slurm.files import site_bytes


def report_data(outcome: SimulationOutcome, command: str, written: str = "") -> ReportData:
    """Contents of the page of `outcome`; `written` is the time of writing."""
    world, setting = outcome.world, outcome.setting
    notes = list(world.notes)
    if outcome.interrupted or outcome.failure:
        missing = f" Not run or not finished: {', '.join(outcome.not_run)}." if outcome.not_run else ""
        why = f" ({outcome.failure})" if outcome.failure else ""
        notes.append(f"The run ended early{why}; the page covers the time up to then.{missing}")
    for policy in outcome.policies:
        if refused := refused_words(policy.result):
            notes.append(f"{policy.name}: {refused}")
        if policy.result.get("stuck"):
            notes.append(f"{policy.name}: {policy.result['stuck']}")
        violations = policy.simulated.found.violations
        notes += [
            f"{policy.name} violated {v.checker} at {format_duration(v.at_s)}: {v.object}: {v.message}"
            for v in violations[:5]
        ]
    first = {reason: f" (first in {row})" for reason, row in world.first_unusable.items()}
    notes += [
        f"{counted(count, 'row of the input was|rows of the input were')} dropped: {reason}{first.get(reason, '')}"
        for reason, count in world.unusable_by_reason.items()
    ]
    return ReportData(
        title=world.title,
        seed=world.seed,
        physics=world.physics,
        durations=setting.durations or "not used",
        telemetry=setting.telemetry or "not used",
        cluster={"nodes": world.spec.nodes, "gpus": world.spec.gpus},
        assumed=dict(world.assumed),
        command=command,
        version=version_of("gpu-autopilot"),
        written=written,
        digest=input_digest(outcome.options),
        notes=tuple(notes),
        policies=tuple(policy.run for policy in outcome.policies if policy.run is not None),
        recorded=dict(world.recorded or {}),
        reproduction=outcome.reproduction() or {},
    )


def input_digest(options: SimulateOptions) -> str:
    """Twelve hexadecimal digits of all inputs of the figures: flags, and the content of every input file."""
    contents = {str(path): path.read_bytes() for _, path in options.files()}
    if options.slurm is not None:
        contents[str(options.slurm)] = site_bytes(options.slurm)
    shipped = {*options.policies, options.scenario or "quickstart"}
    for package in ("autopilot.policies", "simulator.scenarios"):
        for file in resources.files(package).iterdir():
            if file.name.removesuffix(".yaml") in shipped and file.name.endswith(".yaml"):
                contents[file.name.removesuffix(".yaml")] = file.read_bytes()

    def plain(value: object) -> object:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        if isinstance(value, str | Path):
            return hashlib.sha256(contents[str(value)]).hexdigest() if str(value) in contents else str(value)
        return value

    given = {name: plain(value) for name, value in asdict(options).items() if name not in KEPT_APART}
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:12]


KEPT_APART = frozenset({"journal", "registry", "series"})
"""Options for places of files; they do not change the figures."""


def headline(outcome: SimulationOutcome) -> str:
    """The result in one sentence; it needs no series."""
    data = report_data(outcome, "")
    return headline_of(replace(data, policies=tuple(each.run or _figures(each) for each in outcome.policies)))


def _figures(policy: PolicyOutcome) -> PolicyRun:
    """A run without the data for plots."""
    return PolicyRun(name=policy.name, result=policy.result, series=NO_SERIES, waits_s=NO_SERIES.t_s, heat=NO_HEAT)
