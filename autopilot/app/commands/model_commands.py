"""Implementation of `autopilot models`: read the registry, change the serving version, and print."""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autopilot.app.commands.run_commands import out, print_rows
from autopilot.core.model.errors import InputError
from autopilot.files import state_folder
from autopilot.registry import KINDS, Manifest, Registry, VerdictBook, difference, lineage
from autopilot.registry.atomic_files import RegistryError
from autopilot.registry.manifest import SHORT
from autopilot.registry.pointer import Pointer


def registry_folder(given: Path | None) -> Path:
    """The folder of the registry. Raises `InputError` if `given` is a file."""
    folder = given or state_folder() / "registry"
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--registry: {folder} is a file; name a folder")
    return folder


def open_registry(given: Path | None) -> Registry:
    """The chosen registry; its folder need not exist."""
    return Registry(registry_folder(given))


def person(given: str | None) -> str:
    """The user at the keyboard."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container with a nameless user
        return "unknown"


def print_json(document: Any) -> None:
    """Print a document as JSON."""
    out.print(json.dumps(document, indent=2, sort_keys=True))


def when(at_s: float) -> str:
    """A time as text."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def list_models(folder: Path | None, kind: str | None, *, as_json: bool) -> None:
    """Print every version."""
    registry = open_registry(folder)
    kinds = KINDS if kind is None else (kind,)
    book = VerdictBook(registry.folder)
    verdicts = _verdicts(book)
    document: dict[str, Any] = {}
    damaged: list[tuple[str, str]] = []
    rows: list[list[str]] = []
    for each in kinds:
        entries, broken = registry.entries(each)
        served = registry.serve(each)
        serves = served.manifest.version if served.manifest is not None else ""
        passed_over = dict(served.refused)
        damaged += [*served.refused, *(pair for pair in broken if pair[0] not in passed_over)]
        document[each] = [
            {
                **asdict(entry.manifest),
                "version": entry.manifest.version,
                "current": entry.current,
                "serves": entry.manifest.version == serves,
                "served_before": entry.served_before,
                "stored": entry.stored,
                "gate": _gate_word(verdicts.get(entry.manifest.version)),
            }
            for entry in entries
        ]
        for entry in entries:
            manifest, summaries = entry.manifest, verdicts.get(entry.manifest.version)
            mark = (
                "serves"
                if manifest.version == serves
                else "cannot serve"
                if manifest.version in passed_over
                else "served"
                if entry.served_before
                else ""
            )
            name = manifest.version[:SHORT] + ("" if entry.stored else " (dropped)")
            rows.append(
                [
                    mark,
                    name,
                    each,
                    manifest.model,
                    when(manifest.created_s),
                    _window(manifest.data),
                    _gate_word(summaries),
                    _reasons(summaries),
                ]
            )
    if as_json:
        print_json(
            {
                "schema": "gpu-autopilot/models/1",
                "registry": str(registry.folder),
                **document,
                "damaged": [{"name": name, "problem": problem} for name, problem in damaged],
            }
        )
        return
    if rows:
        print_rows(("", "version", "kind", "model", "made", "fitted on", "gate", "why"), rows)
    else:
        out.print(f"{registry.folder}: no versions yet; `autopilot backtest bursts --gate` makes one")
    for name, problem in damaged:
        out.print(f"damaged: {name[:SHORT]}: {problem}")


def _verdicts(book: VerdictBook) -> dict[str, list[dict[str, Any]]]:
    """Summaries of the gate by the judged version (or code); those of an older metric are ignored."""
    from models.backtest import METRIC_VERSION

    found: dict[str, list[dict[str, Any]]] = {}
    for summary in book.summaries():
        if isinstance(summary.get("version"), str) and summary.get("metric_version") == METRIC_VERSION:
            found.setdefault(summary["version"], []).append(summary)
    return found


def _gate_word(summaries: list[dict[str, Any]] | None) -> str:
    if not summaries:
        return "not judged"
    return "passed" if all(each.get("passed") for each in summaries) else "refused"


def _window(data: Mapping[str, Any]) -> str:
    rows = data.get("rows")
    name = str(data.get("name", "")) or str(data.get("digest", ""))[:SHORT]
    return f"{rows:,} rows of {name}" if isinstance(rows, int) else name


def _reasons(summaries: list[dict[str, Any]] | None) -> str:
    """The gate's first reason against a version, and the number of further ones."""
    reasons = [reason for each in summaries or () if not each.get("passed") for reason in each.get("reasons", ())]
    return (reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")) if reasons else ""


def show_model(folder: Path | None, name: str, *, as_json: bool) -> None:
    """Print one version."""
    registry = open_registry(folder)
    manifest = registry.find(name)
    pointer = registry.pointer(manifest.kind)
    changes = [asdict(entry) for entry in pointer.log if entry.version == manifest.version]
    summaries = _verdicts(VerdictBook(registry.folder)).get(manifest.version, [])
    problem = ""
    try:
        registry.load(manifest.kind, manifest.version)
    except RegistryError as error:
        problem = str(error)
    document = {
        **asdict(manifest),
        "version": manifest.version,
        "current": pointer.current == manifest.version,
        "promotions": changes,
        "verdicts": summaries,
        "problem": problem,
    }
    if as_json:
        print_json(document)
        return
    out.print(f"{manifest.kind} {manifest.version}" + (" (serves)" if document["current"] and not problem else ""))
    if problem:
        out.print(f"cannot serve: {problem}")
    out.print(
        f"made {when(manifest.created_s)} by {manifest.created_by or 'unknown'}, code {manifest.code}, seed "
        f"{manifest.seed}"
    )
    for heading, value in (
        ("model", manifest.model),
        ("artifact", f"{manifest.artifact} ({manifest.artifact_bytes:,} bytes)"),
        ("data", _pairs(manifest.data)),
        ("features", f"{len(manifest.feature_schema)}: {', '.join(manifest.feature_schema)}"),
        ("parameters", _pairs(manifest.parameters)),
        ("libraries", _pairs(manifest.libraries)),
        ("counted work", f"{manifest.counted_work:,} rows x trees"),
        ("parent", manifest.parent or "none"),
    ):
        out.print(f"{heading + ':':14}{value or '-'}")
    print_rows(
        ("score", ""),
        [[name, f"{value:.4g}" if isinstance(value, float) else str(value)] for name, value in manifest.scores.items()],
    )
    for summary in summaries:
        scored = summary.get("against_champion")
        against = str(summary.get("champion", ""))[:SHORT] if scored else ""
        against = against or "the floor alone"
        word = "passed" if summary.get("passed") else "refused"
        out.print(f"gate on {summary.get('data', '?')} against {against}: {word}")
        for reason in summary.get("reasons", ()):
            out.print(f"  {reason}")
    for entry in pointer.log:
        if entry.version == manifest.version:
            out.print(f"{entry.how} {when(entry.at_s)} by {entry.by}: {entry.why or 'no reason given'}")


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def diff_models(folder: Path | None, one: str, other: str, *, as_json: bool) -> None:
    """Print the fields with different values in two versions."""
    registry = open_registry(folder)
    left, right = registry.find(one), registry.find(other)
    found = difference(left, right)
    if as_json:
        print_json(
            {
                "one": left.version,
                "other": right.version,
                "differs": {name: [before, after] for name, before, after in found},
            }
        )
        return
    if not found:
        out.print(f"{left.version[:SHORT]} and {right.version[:SHORT]} are the same version")
        return
    print_rows(
        ["", left.version[:SHORT], right.version[:SHORT]],
        [[name, *("-" if value is None else str(value) for value in values)] for name, *values in found],
    )


def promote_model(folder: Path | None, name: str, by: str | None, why: str, *, force: bool) -> None:
    """Promote a version passed by the gate against the serving one. Raises `InputError` for any other."""
    registry = open_registry(folder)
    manifest = registry.find(name)
    current = registry.pointer(manifest.kind).current
    serves = registry.serve(manifest.kind).manifest  # another version if the current one cannot serve
    problem = gate_problem(registry, manifest, "" if serves is None else serves.version)
    if problem and not force:
        raise InputError(
            f"{manifest.kind} {manifest.version[:SHORT]}: {problem}. --force promotes it anyway and records that"
        )
    pointer = registry.promote(
        manifest.kind, manifest.version, by=person(by), why=why, forced=bool(problem), expected=current
    )
    out.print(f"{manifest.kind}: {pointer.current[:SHORT]} serves now; before: {current[:SHORT] or 'none'}")


def gate_problem(registry: Registry, manifest: Manifest, current: str) -> str:
    """The gate's reason against a version as successor of the serving `current` ("": none serves); "" without one."""
    if manifest.version == current:
        return ""
    verdicts = _verdicts(VerdictBook(registry.folder))
    summaries = verdicts.get(manifest.version, [])
    against = [each for each in summaries if each.get("champion") == current]
    if not summaries:
        return "the gate has not judged it; run `autopilot backtest` with --gate"
    if not against:
        return f"it was judged against another version than {current[:SHORT] or 'none'}, which serves now"
    if current and not any(each.get("against_champion") for each in against):
        return f"it was not compared with {current[:SHORT]}, which serves now, because that version could not be scored"
    code = [each for each in verdicts.get(f"code {manifest.code}", []) if each.get("kind") == manifest.kind]
    if not code:
        return f"its code was not judged on the golden set; run `autopilot backtest {manifest.kind} --gate`"
    return _refusal(against, "") or _refusal(code, " on the golden set")


def _refusal(summaries: list[dict[str, Any]], where: str) -> str:
    if all(each.get("passed") for each in summaries):
        return ""
    return f"the gate refused it{where}: {_reasons(summaries) or 'no reason recorded'}"


def rollback_models(folder: Path | None, kind: str, by: str | None, why: str) -> None:
    """Roll back by one step."""
    registry = open_registry(folder)
    before = registry.pointer(kind).current
    pointer: Pointer = registry.rollback(kind, by=person(by), why=why, expected=before)
    out.print(f"{kind}: {pointer.current[:SHORT]} serves again; {pointer.log[-1].before[:SHORT]} does not")


def show_lineage(folder: Path | None, name: str, *, as_json: bool) -> None:
    """Print a version and its ancestors."""
    registry = open_registry(folder)
    found, end = lineage(registry, registry.find(name))
    if as_json:
        print_json({"lineage": [{**asdict(each), "version": each.version} for each in found], "ends": end})
        return
    for each in found:
        digest = str(each.data.get("digest", ""))[:SHORT] or "unknown"
        out.print(f"{each.version[:SHORT]}  {when(each.created_s)}  {each.model}, data {digest}, code {each.code}")
    if end:
        out.print(f"ends here: {end}")


def collect_garbage(folder: Path | None, keep: int, *, dry_run: bool) -> None:
    """Drop old versions and print the freed space."""
    registry = open_registry(folder)
    dropped, freed = registry.gc(keep, dry_run=dry_run)
    if not dry_run:
        VerdictBook(registry.folder).drop_unknown({name for kind in KINDS for name in registry.versions(kind)})
    verb = "would drop" if dry_run else "dropped"
    mib = 1024 * 1024
    out.print(
        f"{verb} {len(dropped)} artifacts, {freed / mib:.1f} MiB; {registry.used_bytes() / mib:.1f} of "
        f"{registry.quota_bytes / mib:.0f} MiB are in use"
    )
    for name in dropped:
        out.print(f"  {name[:SHORT]}")
