"""The baseline `slurm` against recordings of a real Slurm scheduler.

    python -m benchmarks slurm [FOLDER ...] [--quick] [--json OUT]

Each folder is one recorded workload; tests/data/slurm/scheduling has some, which `--quick` reads. Its recorded states
are given to the baseline, pass by pass, and it plays the whole workload with the loop phases of run 1.
WORKLOAD-passes.csv (run, pass, job, nodes) and WORKLOAD-starts.csv (job, start_s, node, restarts) are written to
benchmarks/out/slurm.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from benchmarks.kit import OUT, ROOT, data_folder, options, table, write_json
from benchmarks.slurm_figures import figures
from benchmarks.slurm_play import Player, Score, score
from benchmarks.slurm_recordings import Recording, read
from benchmarks.slurm_states import Pass, passes, preemptions

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


@dataclass(frozen=True, slots=True)
class Judged:
    """What is known of one workload. `stops`: recorded preemptions, and those of the recorded victim; `figures`: those
    of sprio and sshare, and how many are equal.
    """

    passes: dict[str, Tally]
    run: Score
    stops: tuple[int, int]
    figures: tuple[int, int]


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


def judge_run(recording: Recording, out: Path) -> Score:
    """The score of one whole run; writes its starts."""
    played = Player(recording, recording.runs[0]).play()
    with out.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("job", "start_s", "node", "restarts"))
        for job, one in played.items():
            rows.writerow((job, "" if one.start_s is None else f"{one.start_s:.2f}", one.node, one.restarts))
    return score(recording, played)


def judge_stops(recording: Recording) -> tuple[int, int]:
    """Recorded preemptions, and how many of them take the recorded victim."""
    found = [each.job in stops for each, stops in preemptions(recording)]
    return len(found), sum(found)


def judge_figures(recording: Recording) -> tuple[int, int]:
    """Priority and share figures that were printed, and how many are equal to the last digit."""
    found = [printed == computed for _, printed, computed in figures(recording)]
    return len(found), sum(found)


def print_all(judged: dict[str, Judged]) -> dict[str, Any]:
    """The three tables, and their sums as a document."""
    total = {loop: Tally() for loop in LOOPS}
    rows: list[list[str]] = []
    for name, one in judged.items():
        for loop, tally in sorted(one.passes.items()):
            rows.append(tally.row(name, loop))
            for field, value in asdict(tally).items():
                setattr(total[loop], field, getattr(total[loop], field) + value)
    rows += [tally.row("all", loop) for loop, tally in total.items()]
    table(("workload", "loop", "passes", "same set", "starts", "predicted", "same nodes", "invented"), rows)
    stops, right = (sum(one.stops[k] for one in judged.values()) for k in (0, 1))
    if stops:
        print(f"\nrecorded preemptions {stops}, of the recorded victim {right}")
    shown, equal = (sum(one.figures[k] for one in judged.values()) for k in (0, 1))
    if shown:
        print(f"\npriority and share figures {shown}, equal {equal}")
    print()
    runs = {name: one.run for name, one in judged.items()}
    mean = sum(run.within_tolerance for run in runs.values()) / max(len(runs), 1)
    table(
        ("workload", "jobs", "within tolerance", "within 3 s of nearest run", "inversions", "wait error, s"),
        [
            [
                name,
                str(run.jobs),
                f"{run.within_tolerance:.2f}",
                f"{run.nearest_within_3_s:.2f}",
                f"{run.inversions:.3f}",
                f"{run.mean_wait_error_s:.1f}",
            ]
            for name, run in runs.items()
        ]
        + [["mean", "", f"{mean:.3f}", "", "", ""]],
    )
    return {
        "passes": {loop: asdict(tally) for loop, tally in total.items()},
        "preemptions": {"recorded": stops, "same_victim": right},
        "figures": {"printed": shown, "equal": equal},
        "runs": {name: asdict(run) for name, run in runs.items()},
        "within_tolerance_mean": mean,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every folder, print the table, write the files."""
    given = options(__doc__, arguments, folders=[])
    out = OUT / "slurm"
    out.mkdir(parents=True, exist_ok=True)
    quick = [each for each in KEPT.iterdir() if each.is_dir()] if given.quick else []
    judged: dict[str, Judged] = {}
    for folder in folders(given.folders or quick):
        try:
            recording = read(folder)
        except InputError as error:
            raise SystemExit(str(error)) from None
        judged[recording.name] = Judged(
            judge_passes(recording, out / f"{recording.name}-passes.csv"),
            judge_run(recording, out / f"{recording.name}-starts.csv"),
            judge_stops(recording),
            judge_figures(recording),
        )
    write_json(given.json, print_all(judged))
    return 0
