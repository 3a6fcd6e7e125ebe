"""Runs and rows for the tests of metering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import PolicyOutcome, simulate
from autopilot.metering.amounts import AMOUNTS, Row
from autopilot.metering.lines import lines_of, period_of
from autopilot.metering.prices import Prices
from autopilot.metering.segments import Store
from autopilot.metering.showback import Asked
from autopilot.metering.spend import calendar_of

SCENARIO = """
name: metered
seed: 3
horizon: 2h
cluster:
  pools:
    - {name: whole, nodes: 2, gpus_per_node: 8, gpu_model: H100-80GB}
    - {name: small, nodes: 1, gpus_per_node: 4, gpu_model: A100-80GB}
  queues:
    - {name: vision, guarantee: {H100-80GB: 12}}
    - {name: language, guarantee: {H100-80GB: 4, A100-80GB: 2}}
jobs:
  groups:
    - {kind: train, count: 14, tenants: [vision], gpus: [4, 8], duration: 20m, spread: 0.5, from: 10m, to: 2h,
       checkpoint_interval: never}
    - {kind: train, count: 24, tenants: [language, guest], gpus: [1, 2], duration: 25m, spread: 0.6, from: 0h, to: 2h,
       checkpoint_interval: never}
physics: real
telemetry: windowed
durations: exact
"""
FAULTS = "faults: {node_mtbf: 2h, node_mttr: 10m, view_loss_ratio: 0.1}\n"


class Memory:
    """A sink in memory."""

    shift = 0

    def __init__(self, end: int | None = None) -> None:
        self.rows: list[Row] = []
        self.spans: list[tuple[int, int]] = []
        self.end = end

    def put(self, begin: int, end: int, rows: Sequence[Row]) -> None:
        """Keep them."""
        self.spans.append((begin, end))
        self.rows += rows
        self.end = end


def run_metered(folder: Path, text: str = SCENARIO) -> PolicyOutcome:
    """A simulated run of the autopilot with a journal, and with its metering beside it."""
    (folder / "metered.yaml").write_text(text)
    options = SimulateOptions(
        scenario=str(folder / "metered.yaml"), policies=("autopilot",), journal=folder / "run.journal", series=False
    )
    return simulate(options).policies[0]


def sums_of(rows: Sequence[Row]) -> Counter[tuple[str, str]]:
    """Each amount by kind."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for name, value in zip(AMOUNTS, row.amounts, strict=True):
            found[row.key[0], name] += value
    return found


def stored_sums(store: Store) -> Counter[tuple[str, str]]:
    """The same of a folder."""
    found: Counter[tuple[str, str]] = Counter()
    for line in whole_lines(store):
        for name in AMOUNTS:
            found[line["kind"], name] += line[name]
    return found


def whole_lines(store: Store) -> list[dict[str, Any]]:
    """The sums of a whole folder by owner."""
    period = period_of(store)
    frame = lines_of(store, [period.begin, period.end])
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def asked(store: Store, prices: Prices, since: int | None = None, until: int | None = None) -> Asked:
    """What is asked of a folder, in the zone of the prices."""
    return Asked(store, prices, calendar_of(store, prices), since, until)
