"""What weighed actions promised and what they realised, by action, over scenarios.

    python -m benchmarks promises            # quickstart, mixed, reclaim-storm, burst, and eight hours of the demo
    python -m benchmarks promises --quick    # quickstart and reclaim-storm

The cases are read from the journal of each run under the policy `autopilot` (`--policy` names another). A case counts
when its horizon is over, the start without the action could be predicted, and the loss of every victim was reported.
Realised are the GPU-seconds that the work which started earlier used before that start, less the lost work. The page
docs/operations.md describes the measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.promises import Realised
from autopilot.journal import JournalReader
from benchmarks.kit import options, table, write_json
from simulator.scenarios.loader import SHIPPED

SCENARIOS = ("quickstart", "mixed", "reclaim-storm", "burst", "demo")
QUICK = ("quickstart", "reclaim-storm")
DEMO_HOURS = 8


@dataclass(slots=True)
class Row:
    """One action in one scenario."""

    scenario: str
    action: str
    counted: int = 0
    promised_gpu_s: float = 0.0
    used_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    unknown: dict[str, int] = field(default_factory=dict)
    capped: bool = False

    @property
    def ratio(self) -> float:
        """Realised use / promised use."""
        return (self.used_gpu_s - self.lost_gpu_s) / self.promised_gpu_s if self.promised_gpu_s else float("nan")

    def add(self, case: Realised) -> None:
        """One finished case."""
        if case.unknown:
            self.unknown[case.unknown] = self.unknown.get(case.unknown, 0) + 1
            return
        self.counted += 1
        self.promised_gpu_s += case.promised_gpu_s
        self.used_gpu_s += case.used_gpu_s
        self.lost_gpu_s += case.lost_gpu_s


def measure(scenario: str, policy: str, folder: Path) -> list[Row]:
    """The rows of one scenario."""
    journal = folder / f"{scenario}.journal"
    given = _shorter(folder) if scenario == "demo" else scenario
    simulate(SimulateOptions(scenario=given, policies=(policy,), journal=journal, series=False))
    rows: dict[str, Row] = {}
    with JournalReader(journal) as reader:
        for record in reader.decisions(refusals=False):
            decision = record.decision
            for case in decision.realised:
                rows.setdefault(case.action, Row(scenario, case.action)).add(case)
            for note in decision.notes:
                if note.code == "action_capped":
                    rows[note.subject].capped = True
    return sorted(rows.values(), key=lambda row: row.action)


def _shorter(folder: Path) -> str:
    """The first hours of the demo, with services and tenants as they are."""
    content = yaml.safe_load((SHIPPED / "demo.yaml").read_text(encoding="utf-8"))
    content["horizon"] = f"{DEMO_HOURS}h"
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. There is no goal: a ratio below the least of the policy caps the action, which is shown."""
    given = options(__doc__ or "", arguments, policy="autopilot", scenarios="")
    names = given.scenarios.split(",") if given.scenarios else QUICK if given.quick else SCENARIOS
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for name in names:
            rows += measure(name, given.policy, Path(folder))
    table(
        ("scenario", "action", "cases", "promised GPU-h", "used", "lost", "realised / promised", "do not count", "cap"),
        [_cells(row) for row in rows],
    )
    write_json(given.json, {"rows": [asdict(row) for row in rows]})
    return 0


def _cells(row: Row) -> tuple[str, ...]:
    unknown = ", ".join(f"{count} {why}" for why, count in sorted(row.unknown.items())) or "-"
    return (
        row.scenario,
        row.action,
        f"{row.counted}",
        *(f"{gpu_s / 3600:.1f}" for gpu_s in (row.promised_gpu_s, row.used_gpu_s, row.lost_gpu_s)),
        f"{row.ratio:.2f}" if row.counted else "-",
        unknown,
        "capped" if row.capped else "-",
    )
