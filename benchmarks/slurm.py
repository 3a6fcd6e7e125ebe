"""The baseline `slurm` against recordings of a real Slurm scheduler.

    python -m benchmarks slurm [FOLDER ...] [--quick] [--json OUT]

Each folder is one recorded workload (tests/data/slurm/scheduling has some). Its recorded states are given to the
baseline, pass by pass. PASSES.csv (run, pass, job, nodes) is written to benchmarks/out/slurm for each.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.kit import OUT, ROOT, data_folder, table, write_json
from benchmarks.slurm_recordings import Recording, read
from benchmarks.slurm_states import Pass, passes

KEPT = ROOT / "tests" / "data" / "slurm" / "scheduling"
LOOPS = ("main", "backfill", "quiet")


@dataclass(slots=True)
class Tally:
    """Passes of one loop: how many, how many with the same set of starts; starts recorded, predicted, on the same nodes
    (under topology: the same number of leaves), and predicted ones that did not happen.
    """

    passes: int = 0
    same_set: int = 0
    starts: int = 0
    predicted: int = 0
    same_nodes: int = 0
    invented: int = 0

    def add(self, one: Pass) -> None:
        """One more pass."""
        both = one.started.keys() & one.predicted.keys()
        self.passes += 1
        self.same_set += one.same_set
        self.starts += len(one.started)
        self.predicted += len(both)
        leaves = one.by == "backfill" and one.leaves
        self.same_nodes += sum(a == b for a, b in one.leaves.values()) if leaves else one.same_nodes
        self.invented += len(one.predicted.keys() - one.started.keys())

    def row(self, *names: str) -> list[str]:
        """A row of the printed table."""
        return [*names, *(str(value) for value in asdict(self).values())]


def folders(given: Sequence[Path]) -> list[Path]:
    """The folders to read: those given, else all of the shared set, else those in the repository."""
    if given:
        return list(given)
    base = data_folder() / "slurm" / "scheduling"
    return sorted(path for path in (base if base.exists() else KEPT).iterdir() if path.is_dir())


def judge_passes(recording: Recording, out: Path) -> dict[str, Tally]:
    """The tally of each loop; writes what the baseline starts in each recorded state."""
    found: dict[str, Tally] = {}
    with out.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("run", "pass", "job", "nodes"))
        for one in passes(recording):
            found.setdefault(one.by, Tally()).add(one)
            rows.writerows((one.run, one.number, job, nodes) for job, nodes in one.predicted.items())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every folder, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="the workloads in the repository")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    out = OUT / "slurm"
    out.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    total = {loop: Tally() for loop in LOOPS}
    for folder in folders(given.folders or ([each for each in KEPT.iterdir() if each.is_dir()] if given.quick else [])):
        recording = read(folder)
        for loop, tally in sorted(judge_passes(recording, out / f"{recording.name}-passes.csv").items()):
            rows.append(tally.row(recording.name, loop))
            for name, value in asdict(tally).items():
                setattr(total[loop], name, getattr(total[loop], name) + value)
    rows += [tally.row("all", loop) for loop, tally in total.items()]
    table(("workload", "loop", "passes", "same set", "starts", "predicted", "same nodes", "invented"), rows)
    write_json(given.json, {"passes": {loop: asdict(tally) for loop, tally in total.items()}})
    return 0
