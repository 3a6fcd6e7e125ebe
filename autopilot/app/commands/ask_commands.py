"""Implementation of plan, replay and explain: print decisions as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autopilot.app.commands.json_out import STDOUT, write_json
from autopilot.app.commands.run_commands import out, print_world, progress_bar
from autopilot.app.options import BASELINE_NAMES, SHIPPED_NAMES, SimulateOptions
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted, parse_duration_s


def run_plan(options: SimulateOptions, at: str, policy: str, json_out: Path | None) -> None:
    """Plan once at one moment of a scenario, or of the files that `options` name."""
    from autopilot.app.decisions.decision_rows import signals_document, tick_document
    from autopilot.app.runs.plan import plan_at
    from autopilot.app.when import When
    from autopilot.core.placement.fragmentation.measure import fragmentation_of
    from autopilot.explain.fragmentation import fragmentation_document, fragmentation_lines
    from autopilot.explain.idle import idle_document, idle_lines
    from autopilot.explain.proposals import explain_decision
    from autopilot.explain.use import group_lines, groups_document
    from autopilot.settings import load_policy

    no_baseline("plan", policy)
    check_place(json_out, tuple(path for _, path in options.files()))
    world, observation, decision = plan_at(options, parse_duration_s(at, "--at"), policy)
    fragmentation, rules = fragmentation_of(observation), load_policy(policy)
    if json_out is not None:
        signals = signals_document(observation)
        document: dict[str, Any] = {"schema": "gpu-autopilot/plan/1", "policy": policy, "signals": signals}
        document["use"] = groups_document(observation)
        document["idle"] = idle_document(observation, rules)
        document["fragmentation"] = fragmentation_document(fragmentation, rules.modes)
        write_json(json_out, document | tick_document(decision, When()))
        if json_out == STDOUT:
            return
    print_world(world)
    signals_now = observation.signals
    out.print(
        f"{signals_now.allocated_gpus:g} of {counted(signals_now.capacity_gpus, 'GPU')} allocated, "
        f"{signals_now.free_gpus:.4g} free, {signals_now.out_of_use_gpus:.4g} out of use; "
        f"{signals_now.pending_gpus:g} requested; {signals_now.stranded_gpus:.4g} GPUs of the pending work do not fit "
        "because of fragmentation"
    )
    use = [*group_lines(observation), *idle_lines(observation, rules)]
    for line in [*use, *fragmentation_lines(fragmentation, rules.modes)]:
        out.print(line)
    print_lines(explain_decision(decision), json_out)
    out.print(f"nothing was carried out: policy {policy} would do this")


def no_baseline(command: str, policy: str | None) -> None:
    """Raise `InputError` if `policy` names a baseline: baselines make no decisions to show."""
    if policy in BASELINE_NAMES:
        raise InputError(
            f"--policy: {policy} is a baseline, which only `autopilot simulate` runs; {command} takes one "
            f"of {', '.join(SHIPPED_NAMES)} or a policy file (.yaml)"
        )


def run_replay(path: Path, policy: str | None, json_out: Path | None) -> None:
    """Replay a journal and print the result; exit 1 if it is not identical."""
    from autopilot.records.replay import replay, replay_lines
    from autopilot.settings import load_policy

    check_place(json_out, (path,))
    candidate = load_policy(policy) if policy else None
    with progress_bar() as show:
        result = replay(path, candidate, lambda done, total: show("replay", done, total, f"{done:,}/{total:,} ticks"))
    if json_out is not None:
        write_json(json_out, {"schema": "gpu-autopilot/replay/1", "identical": result.identical} | asdict(result))
    print_lines(replay_lines(result), json_out)
    if candidate is None and not result.identical:
        sys.exit(1)


def run_explain(
    path: Path, decision: str | None, workload: str | None, at_s: float | None, json_out: Path | None
) -> None:
    """Explain a proposal, a tick, or a workload from a journal."""
    from autopilot.app.decisions.answers import explain_from

    check_place(json_out, (path,))
    answer = explain_from(path, decision, workload, at_s)
    if json_out is not None:
        document: dict[str, Any] = {"schema": "gpu-autopilot/explain/1", **answer.document, "lines": answer.lines}
        write_json(json_out, document)
    print_lines(answer.lines, json_out)


def check_place(json_out: Path | None, reads: tuple[Path, ...]) -> None:
    """Check before the run: the file is writable and no input of the command. Raises `InputError`."""
    if json_out is not None and json_out != STDOUT:
        from autopilot.app.commands.backtest_commands import check_json

        check_json(json_out, reads)


def print_lines(lines: Iterable[str], json_out: Path | None) -> None:
    """Print the lines, unless JSON replaces them."""
    if json_out == STDOUT:
        return
    for line in lines:
        out.print(line)
    if json_out is not None:
        out.print(f"result: {json_out}")
