"""Priority and share figures of run 1, computed from its events, against what sprio and sshare printed."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.slurm_recordings import Event, Recording
from benchmarks.slurm_states import BEFORE_S, Replay
from simulator.baselines.slurm.fairshare import Share
from simulator.baselines.slurm.slurmctld import Slurmctld


def figures(recording: Recording) -> Iterator[tuple[str, str, str]]:
    """(where, printed, computed) of each figure; none where the folder has no samples."""
    rows = [*_rows(recording.folder / "sprio.csv"), *_rows(recording.folder / "sshare.csv")]
    state = Replay(recording, 1)
    starts = [each for each in recording.events if each.run == 1 and each.event == "start"]
    for row in sorted(rows, key=lambda each: float(each["t"])):
        t = float(row["t"])
        while starts and starts[0].t <= t:
            _start(state, starts.pop(0))
        state.advance(t)
        if "job" in row:
            yield from _priority(row, state.ctl)
        else:
            yield from _share(row, state.ctl)


def _start(state: Replay, each: Event) -> None:
    state.advance(each.t - BEFORE_S)
    state.start(each)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _compared(where: str, printed: Mapping[str, str], computed: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in computed.items():
        if printed.get(name):
            yield f"{where} {name}", printed[name], value


def _short(value: float) -> str:
    """Seven decimals, without the zeros at the end."""
    return f"{value:.7f}".rstrip("0").rstrip(".")


def _priority(row: dict[str, str], ctl: Slurmctld) -> Iterator[tuple[str, str, str]]:
    each = ctl.waiting.get(row["job"])
    if each is None:
        return
    found, weights = each.factors, ctl.site.config.weights
    values = {
        "age": ("age", found.age),
        "fs": ("fairshare", found.fairshare),
        "size": ("jobsize", found.size),
        "part": ("partition", found.partition),
        "qos": ("qos", found.qos),
    }
    computed = {"priority": str(each.priority)}
    for name, (weight, value) in values.items():
        computed[f"{name}_n"] = _short(value)
        computed[f"{name}_w"] = f"{weights.get(weight, 0) * value:.0f}"
    if found.tres:
        computed["tres_w"] = ",".join(f"{name}={value:.0f}" for name, value in found.tres.items() if value)
    yield from _compared(f"{row['t']} {row['job']}", row, computed)


def _share(row: dict[str, str], ctl: Slurmctld) -> Iterator[tuple[str, str, str]]:
    shares = ctl.priorities.shares
    share = shares.of(row["account"], row["user"])
    if share is None or share.parent is None:
        return
    tree = ctl.site.config.fair_tree
    computed = {
        "raw_shares": str(share.what.shares),
        "norm_shares": f"{share.level_shares if tree else share.norm_shares:.6f}",
        "raw_usage": str(int(share.usage)),
    }
    if tree:
        computed |= _of_tree(share)
    else:
        computed |= {"fairshare": f"{shares.classic(share):.6f}", "eff_usage": f"{share.effective or 0.0:.6f}"}
    yield from _compared(f"{row['t']} {row['account']} {row['user']}", row, computed)


def _of_tree(share: Share) -> dict[str, str]:
    computed = {
        "norm_usage": f"{share.norm_usage:.6f}",
        "eff_usage": f"{share.effective or 0.0:.6f}",
        "level_fs": f"{share.level_fs:.6f}",
    }
    return computed | ({"fairshare": f"{share.fair:.6f}"} if share.what.user else {})
