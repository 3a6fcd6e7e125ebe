"""Implementation of `autopilot backtest`: run, print, write, and with --gate judge."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autopilot.app.backtests.backtest_options import (
    BackProgress,
    BurstsOptions,
    GateEvidence,
    RuntimesOptions,
)
from autopilot.app.commands.model_commands import open_registry, person
from autopilot.app.commands.run_commands import Show, out, print_rows, progress_bar
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted, format_duration
from autopilot.files import check_output

BURST_ROWS = (
    ("MAE / last value", "mae_vs_naive"),
    ("MASE", "mase"),
    ("0.9 pinball / mean", "pinball_p90"),
    ("0.99 pinball / mean", "pinball_p99"),
    ("coverage of 0.9", "coverage_p90"),
    ("coverage of 0.99", "coverage_p99"),
    ("  worst eighth", "coverage_p99_worst_eighth"),
    ("headroom of 0.99", "headroom_p99"),
)
RUNTIME_ROWS = (
    ("relative error, median", "median_relative_error"),
    ("R2 of log", "r2_log"),
    ("MAE of log", "mae_log"),
    ("exceeded its prediction", "under_ratio"),
    ("0.9 pinball of log", "pinball_p90"),
    ("coverage of 0.9", "coverage_p90"),
    ("  worst tenth", "coverage_p90_worst_tenth"),
)


def check_json(path: Path | None, reads: tuple[Path, ...]) -> None:
    """Check before a long run: the file is writable and no input of the run. Raises `InputError`."""
    if path is None:
        return
    check_output(path, "--json")
    if path.resolve() in {each.resolve() for each in reads}:
        raise InputError(f"--json: {path} is an input of this command; name another file")


def backtest_bursts(options: BurstsOptions | None, json_out: Path | None, folder: Path | None, *, gate: bool) -> None:
    """Backtest burst forecasts on a file; without one on the golden set. Exit code 1 if the gate refuses."""
    from autopilot.app.backtests.from_requests import run

    golden = options is None
    if options is None:
        from autopilot.app.backtests.golden import golden_file

        options = BurstsOptions(series=golden_file("bursts"))
    setting = {"target": options.target, "horizons_s": list(options.horizons_s), "step_s": options.step_s}
    _run("bursts", run, options, options.path, json_out, folder, setting, gate=gate, golden=golden, show=print_bursts)


def backtest_runtimes(
    options: RuntimesOptions | None, json_out: Path | None, folder: Path | None, *, gate: bool
) -> None:
    """Backtest run-time forecasts on a file; without one on the golden set. Exit code 1 if the gate refuses."""
    from autopilot.app.backtests.from_jobs import run

    golden = options is None
    if options is None:
        from autopilot.app.backtests.golden import golden_file

        options = RuntimesOptions(jobs=golden_file("runtimes"))
    _run("runtimes", run, options, options.jobs, json_out, folder, {}, gate=gate, golden=golden, show=print_runtimes)


def _run(
    kind: str,
    run: Any,
    options: Any,
    path: Path,
    json_out: Path | None,
    folder: Path | None,
    setting: Mapping[str, Any],
    *,
    gate: bool,
    golden: bool,
    show: Any,
) -> None:
    """Run, print, write and judge. Results are written before the registry is used: its errors cannot lose them."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    check_json(json_out, (path,))
    evidence: GateEvidence | None = None
    champion, notes, digest = "", tuple[str, ...](), ""
    if gate:
        from autopilot.app.backtests.gate import file_digest, open_evidence

        registry = open_registry(folder)
        registry.check_writable()
        digest = file_digest(path)  # digest now: a file may grow during the run
        if golden:  # a champion fitted on other data is no fair opponent: here the code is judged
            evidence = GateEvidence()
        else:
            evidence, champion, notes = open_evidence(registry, kind)
        options = replace(options, evidence=evidence)
    from autopilot.worker import one_thread

    with progress_bar() as shown, one_thread():
        document = run(options, _progress(kind, shown))
    show(document)
    _print_odd_rows(document)
    _write(document, json_out)
    if evidence is None:
        return
    from autopilot.app.backtests.gate import judge_models
    from autopilot.app.backtests.golden import GOLDEN_VERSION

    name = f"golden set {GOLDEN_VERSION}" if golden else path.name
    judged = judge_models(
        kind,
        registry,
        evidence,
        champion,
        document,
        {"name": name, "digest": digest},
        setting,
        options.seed,
        person(None),
        store=not golden,
    )
    out.print()
    print_verdict(judged, notes)
    if not judged.verdict.passed:
        sys.exit(1)


def _progress(name: str, shown: Show) -> BackProgress:
    return lambda done, total, words: shown(name, done, total, words)


def _write(document: dict[str, Any], json_out: Path | None) -> None:
    if json_out is not None:
        from autopilot.files import write_document

        write_document(document, json_out)
        out.print(f"result: {json_out}")


def _print_odd_rows(document: Mapping[str, Any]) -> None:
    """Print the number of dropped rows, and the assumptions for others."""
    left_out, assumed = document.get("left_out_by_reason"), document.get("assumed_by_reason")
    if left_out:
        out.print("rows dropped: " + ", ".join(f"{count:,} {why}" for why, count in left_out.items()))
    if assumed:
        out.print("assumed: " + ", ".join(f"{what} ({counted(count, 'row')})" for what, count in assumed.items()))


def print_bursts(document: Mapping[str, Any]) -> None:
    """One column per horizon, the floor's figures in parentheses, and the models chosen."""
    horizons: Mapping[str, Mapping[str, Any]] = document["horizons"]
    out.print(
        f"{document['series']} series, on the last fifth of the time (in parentheses: last value under the same "
        f"conformal layer)"
    )
    print_rows(
        ["", *(format_duration(float(horizon)) for horizon in horizons)],
        [[heading, *(_figure(found, key) for found in horizons.values())] for heading, key in BURST_ROWS],
        figures=True,
    )
    for horizon, found in horizons.items():
        out.print(f"chosen at {format_duration(float(horizon))}: {_chosen(found.get('chosen', {}))}")
    _print_cpu(document)


def print_runtimes(document: Mapping[str, Any]) -> None:
    """The scores for total and remaining run time, the floor's in parentheses."""
    out.print(f"{document['jobs']:,} jobs, on the last quarter (in parentheses: the recent-kNN floor)")
    remaining: Mapping[str, Mapping[str, Any]] = document.get("remaining", {})
    rows: list[list[str]] = []
    floors = document.get("floor", {}).get("remaining", {})
    for heading, key in RUNTIME_ROWS:
        left = [_figure({**found, "floor": floors.get(after, {})}, key) for after, found in remaining.items()]
        rows.append([heading, _figure(document, key), *left])
    print_rows(
        ["", "total", *(f"left at {format_duration(float(after))}" for after in remaining)],
        rows,
        figures=True,
    )
    _print_cpu(document)


def _figure(found: Mapping[str, Any], key: str) -> str:
    floor = found.get("floor", {}).get(key)
    own = _number(found.get(key))
    return own if floor is None else f"{own} ({_number(floor)})"


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) and value == value else "-"  # noqa: PLR0124 - NaN


def _chosen(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1])) or "-"


def _print_cpu(document: Mapping[str, Any]) -> None:
    fit, predict = document.get("fit_cpu_s"), document.get("predict_cpu_s")
    if isinstance(fit, int | float) and isinstance(predict, int | float):
        out.print(f"CPU: {fit:.1f} s fitting, {predict:.1f} s forecasting")


def print_verdict(judged: Any, notes: tuple[str, ...]) -> None:
    """Print the verdict of the gate, and each failed rule."""
    verdict = judged.verdict
    against = "the floor; no version serves yet"
    if judged.champion:
        against = f"{judged.champion[:12]} and the floor" if verdict.against_champion else "the floor alone"
    word = "passed" if verdict.passed else "refused"
    out.print(f"gate: {word}, against {against} (metric {verdict.metric_version}, run {judged.run})")
    for note in (*notes, *judged.notes):
        out.print(f"note: {note}")
    for reason in verdict.reasons:
        out.print(f"  {reason}")
    advice = [
        f"{case.case}, {case.group}: {finding.words}"
        for case in verdict.cases
        for finding in case.findings
        if not finding.passed and not finding.blocking
    ]
    if advice:
        out.print("advice, which does not block:")
        for line in advice[:10]:
            out.print(f"  {line}")
        if len(advice) > 10:
            out.print(f"  and {len(advice) - 10} more")
    if not judged.version.startswith("code "):
        out.print(
            f"stored as {judged.version[:12]}"
            + (f"; to serve it: autopilot models promote {judged.version[:12]} --why ..." if verdict.passed else "")
        )


def backtest_policies(journals: tuple[Path, ...], policy: str, json_out: Path | None, folder: Path | None) -> None:
    """Replay journals under a candidate policy and check the thresholds. Exit code 1 if it fails one."""
    from autopilot.app.backtests.gate import file_digest
    from autopilot.records.journal.decisions import digest, policy_bytes
    from autopilot.records.replay.policy_gate import RULES, RULES_VERSION, judge_policy
    from autopilot.registry import VerdictBook, run_name
    from autopilot.registry.book import SUMMARY
    from autopilot.settings import load_policy

    candidate = load_policy(policy)
    check_json(json_out, journals)
    registry = open_registry(folder)
    registry.check_writable()
    book = VerdictBook(registry.folder)
    run = run_name(
        policy=digest(policy_bytes(candidate)).hex(),
        rules=[asdict(rule) for rule in RULES],
        rules_version=RULES_VERSION,
    )
    cases: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    reasons: list[str] = []
    for path in journals:
        name = f"{path.stem}-{file_digest(path)[:12]}"
        with progress_bar() as shown:
            case = judge_policy(
                path, candidate, lambda done, total: shown("replay", done, total, f"{done:,}/{total:,} ticks")
            )
        verdict = asdict(case)
        book.write(run, name, verdict)
        cases.append({"run": run, "case": name, **verdict})
        rows.append(
            [str(path), f"{case.ticks:,}", f"{case.ticks_that_differ:,}", "passed" if case.passed else "refused"]
        )
        reasons += [f"{path}: {reason}" for reason in case.reasons]
    passed = not reasons
    book.write(
        run,
        SUMMARY,
        {"policy": candidate.name, "passed": passed, "reasons": reasons, "cases": [each["case"] for each in cases]},
    )
    print_rows(("journal", "ticks", "differ", "verdict"), rows)
    out.print(f"gate: {'passed' if passed else 'refused'} for {candidate.name} (rules {RULES_VERSION}, run {run})")
    for reason in reasons:
        out.print(f"  {reason}")
    _write(
        {
            "schema": "gpu-autopilot/backtest-policies/1",
            "policy": candidate.name,
            "passed": passed,
            "rules_version": RULES_VERSION,
            "cases": cases,
        },
        json_out,
    )
    if not passed:
        sys.exit(1)
