"""The planner's commands at work: run, print, and write the page and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from autopilot.app.commands.json_out import write_json
from autopilot.app.commands.run_commands import command_line, err, out, print_rows, progress_bar
from autopilot.app.compare.cases import UNCHANGED, Case, Checked, Comparison, check
from autopilot.app.compare.markdown import markdown
from autopilot.app.compare.running import Kept, Record, run_all
from autopilot.app.compare.summary import Finding, Group, findings, groups_of, heading, spread_text, with_recorded
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted
from autopilot.files import check_folder, state_folder, write_bytes
from autopilot.metering.prices import Tariff, flat_prices, load_prices
from autopilot.report.comparison import Bars, ComparisonPage, Range, Table, write_comparison
from autopilot.report.words import Statement, refused_words
from simulator.outcome.reproduced import reproduction

SCHEMA = "gpu-autopilot/comparison/1"
MOST_REFUSALS = 5
"""Runs shown with their refused requests."""
PLOTTED = (("total wait, mean", "hours", 3600.0), ("real utilization until the last arrival", "% of the GPUs", 0.01))


@dataclass(frozen=True, slots=True)
class Desk:
    """Options for prices, workers and output places."""

    price: float | None = None
    price_file: Path | None = None
    workers: int | None = None
    results: Path | None = None
    report: Path | None = None
    dask: str | None = None

    def prices(self) -> Tariff | None:
        """The prices valid now, None without any. Raises `InputError`."""
        if self.price is not None and self.price_file is not None:
            raise InputError("--price, --prices: give one of them")
        if self.price is not None:
            return flat_prices(self.price).at(None)
        return load_prices(self.price_file).at(None) if self.price_file is not None else None

    def kept(self) -> Kept:
        """The folder of finished runs."""
        return Kept(self.results or state_folder() / "compare" / "runs")


def run_compare(comparison: Comparison, desk: Desk, json_out: Path | None) -> None:
    """Run the missing cases, and show all of them."""
    prices = desk.prices()
    checked = check(comparison)
    folder = desk.report or state_folder() / "compare" / "page"
    if json_out != Path("-"):
        check_folder(folder, "--report")
    records = run_kept(checked.cases, desk)
    currency = prices.currency if prices is not None else ""
    groups = with_recorded(groups_of(checked.cases, records, prices), _recorded(checked))
    found = findings(groups, currency)
    if json_out is not None:
        write_json(json_out, document(checked.cases, records, groups, currency))
        if json_out == Path("-"):
            return
    facts = _facts(comparison, checked)
    out.print(" · ".join(facts))
    _print(groups, found, currency)
    believed = _reproduced(checked, records)
    for line in (*believed, *_notes(comparison, checked, records)):
        out.print(line)
    title = f"Comparison on {next(iter(checked.worlds.values())).title}"
    write_bytes(markdown(title, facts, groups, found, currency).encode(), folder / "summary.md")
    page = ComparisonPage(
        title=title,
        headline=found[0].words if found else title,
        facts=tuple(facts),
        findings=tuple(Statement(each.words, each.better) for each in found),
        tables=tuple(_table(group, currency) for group in groups),
        bars=tuple(_bars(groups, *each) for each in PLOTTED),
        notes=(*believed, *_notes(comparison, checked, records)),
        command=command_line(),
    )
    out.print(f"report: {write_comparison(page, folder)}")
    out.print(f"summary: {folder / 'summary.md'}")


def run_kept(cases: Sequence[Case], desk: Desk) -> list[Record]:
    """Run the cases with progress; at Ctrl-C name the kept runs."""
    kept = desk.kept()
    done = 0

    def show_done(ended: int, total: int, words: str) -> None:
        nonlocal done
        done = ended
        show("runs", ended, total, f"{ended:,}/{total:,} runs, {words}")

    with progress_bar() as show:
        try:
            return run_all(cases, kept, desk.workers, show_done, desk.dask)
        except KeyboardInterrupt:
            err.print(
                f"autopilot: {counted(done, 'finished run is|finished runs are')} kept in {kept.folder}; the same "
                "command continues with the rest"
            )
            raise


def document(
    cases: Sequence[Case], records: Sequence[Record], groups: Sequence[Group], currency: str
) -> dict[str, Any]:
    """The comparison as JSON: each figure with its values by seed, and each run whole."""
    return {
        "schema": SCHEMA,
        "version": version_of("gpu-autopilot"),
        "currency": currency or None,
        "groups": [
            {
                "cluster": group.cluster,
                "change": group.change,
                "policies": {
                    policy: {
                        figure.title: {"median": spreads[at].middle, "by_seed": list(spreads[at].by_seed)}
                        for figure, spreads in group.rows
                    }
                    for at, policy in enumerate(group.policies)
                },
            }
            for group in groups
        ],
        "runs": [
            {"cluster": case.cluster, "change": case.change, "policy": case.policy, "seed": case.seed, **record}
            for case, record in zip(cases, records, strict=True)
        ],
    }


def _facts(comparison: Comparison, checked: Checked) -> list[str]:
    world = next(iter(checked.worlds.values()))
    seeds = comparison.seeds
    named = ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{seeds[0]} to {seeds[-1]}"
    return [
        world.title,
        ", ".join(
            f"{cluster} ({counted(each.spec.nodes, 'node')}, {counted(each.spec.gpus, 'GPU')})"
            + ("" if change == UNCHANGED else f" with {change}")
            for (cluster, change), each in checked.worlds.items()
        ),
        f"physics {world.physics}",
        f"{counted(len(seeds), 'seed')}: {named}",
        f"{counted(len(checked.cases), 'run')}",
    ]


def _recorded(checked: Checked) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Figures of the job file's own starts, for each unchanged cluster."""
    return {
        place: world.recorded
        for place, world in checked.worlds.items()
        if place[1] == UNCHANGED and world.recorded is not None
    }


def _reproduced(checked: Checked, records: Sequence[Record]) -> list[str]:
    """Agreement of the baselines with the recorded starts on each unchanged cluster, by its first seed."""
    found = []
    for place, world in checked.worlds.items():
        blocks: dict[str, Any] = {}
        for case, record in zip(checked.cases, records, strict=True):
            if (case.cluster, case.change) == place and place[1] == UNCHANGED and record["reproduced"]:
                blocks.setdefault(case.policy, record["reproduced"])
        if blocks and world.starts is not None:
            found.append(f"{place[0]}: {reproduction(blocks, world.starts)['words']}")
    return found


def _notes(comparison: Comparison, checked: Checked, records: Sequence[Record]) -> list[str]:
    """Help with reading the ranges, and the notes on the input."""
    notes = [note for world in checked.worlds.values() for note in world.notes]
    notes += [
        f"{case.policy}, seed {case.seed}: {words}"
        for case, record in zip(checked.cases, records, strict=True)
        if (words := refused_words(record["result"]))
    ][:MOST_REFUSALS]
    if len(comparison.seeds) > 1 and comparison.base.jobs is not None and not comparison.base.jitter_ratio:
        notes.append(
            "The jobs of a file are the same for every seed: the seeds differ in telemetry and models only. "
            "Add --jitter 0.1 to vary the run times."
        )
    if any(world.physics == "ideal" for world in checked.worlds.values()):
        notes.append("Physics ideal: preemptions and moves cost no time; compare with --physics real.")
    return list(dict.fromkeys(notes))


def _print(groups: Sequence[Group], found: Sequence[Finding], currency: str) -> None:
    """The tables and the differences as text."""
    for group in groups:
        out.print()
        rows = [[heading(figure, currency), *(spread_text(figure, each) for each in row)] for figure, row in group.rows]
        print_rows([group.title, *group.policies], rows, figures=True)
    if found:
        out.print()
    for each in found:
        out.print(each.words)


def _table(group: Group, currency: str) -> Table:
    rows = tuple(
        (heading(figure, currency), *(spread_text(figure, each) for each in spreads)) for figure, spreads in group.rows
    )
    return Table(title=group.title, policies=group.policies, rows=rows)


def _bars(groups: Sequence[Group], title: str, unit: str, scale: float) -> Bars:
    """The plot of one figure over all groups and policies."""
    ranges = [
        Range(
            label=policy if len(groups) == 1 else f"{policy}, {group.title}",
            low=min(spread.known) / scale,
            middle=(spread.middle or 0.0) / scale,
            high=max(spread.known) / scale,
        )
        for group in groups
        for figure, spreads in group.rows
        if figure.title == title
        for policy, spread in zip(group.policies, spreads, strict=True)
        if spread.known
    ]
    return Bars(name=title.split(maxsplit=1)[0], title=title.capitalize(), unit=unit, ranges=tuple(ranges))
