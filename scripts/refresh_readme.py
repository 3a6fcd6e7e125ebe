"""Write anew what README.md shows of runs: the picture, the examples, the table of figures.

    python scripts/refresh_readme.py demo      play the demo; docs/images and the examples
    python scripts/refresh_readme.py figures   the table, from the JSON that benchmarks left in benchmarks/out
    python scripts/refresh_readme.py           both

Each part stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`. `figures` runs nothing; a benchmark
without its JSON is named, its rows stay as they are, and the exit code is 1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autopilot.core.model.records import Code  # noqa: E402  # the checkout first, not an installed copy
from autopilot.journal import JournalReader  # noqa: E402
from benchmarks.foresight import MOST_LATE, RECOVERED, WAIT_RATIO  # noqa: E402
from benchmarks.preemption import JCT_S, USEFUL  # noqa: E402
from benchmarks.tenants import RIVALS  # noqa: E402
from simulator.baselines import TEXTBOOK  # noqa: E402

README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"
OUT = ROOT / "benchmarks" / "out"
PICTURES = ("utilization.svg",)
MOST_LINES = 24
LAST_TWO = "`--durations last-two --telemetry off`"
"""What the autopilot's rows are played with where that is not the default."""


def replace_part(name: str, content: str) -> None:
    """Put `content` between the marks of `name`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = README.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{README.name}: needs one {begin} and one {end}")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    README.write_text(f"{head}{begin}\n{content.strip()}\n{end}{tail}", encoding="utf-8")


# --- demo -----------------------------------------------------------------------------------------


class Shell:
    """Runs the checkout's `autopilot` with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def journal(self) -> Path:
        """What the last run left."""
        return self.folder / "gpu-autopilot" / "last.journal"

    def run(self, *arguments: str) -> str:
        """What a command prints, in 100 columns."""
        environment = dict(os.environ, XDG_STATE_HOME=str(self.folder), COLUMNS="100", PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "autopilot.cli", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"autopilot {' '.join(arguments)}: exit {done.returncode}: {done.stderr[-500:]}")
        home = re.escape(str(self.folder))
        return re.sub(home, "~/.local/state", done.stdout).rstrip()

    def shown(self, *arguments: str, lines: int = MOST_LINES) -> str:
        """A command and what it prints, as a code block; long output is cut, and says so."""
        said = self.run(*arguments).splitlines()
        if len(said) > lines:
            said = [*said[:lines], f"... ({len(said) - lines:,} more lines)"]
        return block(" ".join(arguments), "\n".join(said))


def block(arguments: str, said: str) -> str:
    """A command and its output as Markdown."""
    return f"```console\n$ autopilot {arguments}\n{said}\n```"


def a_proposal(journal: Path) -> str:
    """The taken proposal that shows most: an eviction, else backfill, else the widest start over several nodes."""
    best, chosen = (0, 0), ""
    with JournalReader(journal) as reader:
        for record in reader.decisions():
            for proposal in record.decision.plan.proposals:
                worth = (
                    3 if proposal.victims else 2 if proposal.action == "backfill" else 1,
                    len(proposal.slots),
                )
                if proposal.accepted and worth > best:
                    best, chosen = worth, proposal.id
    return chosen


def someone_who_waits(journal: Path) -> tuple[str, str]:
    """A workload that waits for the most telling reason, and when, as `--at` takes it."""
    telling = (Code.RESERVED, Code.FRAGMENTED, Code.CAPACITY)
    best, found = len(telling), ("", "")
    with JournalReader(journal) as reader:
        for record in reader.decisions():
            refusals = record.decision.plan.refusals
            codes = [refusals.codes[code] for code in refusals.code.tolist()]
            rank = next((place for place, code in enumerate(telling) if code in codes), len(telling))
            if rank < best:
                row = int(refusals.workload[codes.index(telling[rank])])
                workload = str(reader.at(record.number).observation.snapshot.workloads.id[row])
                best, found = rank, (workload, f"{record.now_s:.0f}s")
    if not found[0]:
        raise SystemExit("nothing waits in the demo; choose another example")
    return found


def refresh_demo() -> None:
    """Play the demo, copy its picture, and show commands on its journal."""
    with tempfile.TemporaryDirectory() as name:
        shell = Shell(Path(name))
        table, _, result = shell.run("demo").partition("\n\n")
        replace_part("demo", f"{block('demo', table)}\n\n**{result.splitlines()[0]}**")
        IMAGES.mkdir(parents=True, exist_ok=True)
        for picture in PICTURES:
            shutil.copyfile(shell.folder / "gpu-autopilot" / "demo" / picture, IMAGES / picture)
        workload, at = someone_who_waits(shell.journal)
        replace_part("explain", shell.shown("explain", a_proposal(shell.journal), lines=40))
        replace_part("wait", shell.shown("explain", "--workload", workload, "--at", at))
        replace_part("plan", shell.shown("plan"))
        replay = shell.shown("replay")
        replace_part("replay", f"{replay}\n\n{shell.shown('replay', '--policy', 'recommend', lines=14)}")


# --- figures --------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """One row of the table."""

    what: str
    value: str
    goal: str


def of_parity(found: dict[str, Any]) -> Iterator[Figure]:
    """How many cells of the published table differ."""
    cells = sum(len(rows) for rows in found["found"].values())
    yield Figure(
        f"the textbook orders and bounds on {' and '.join(found['found'])}, rows that differ from the published table",
        f"{found['differing']} of {cells}",
        "0",
    )


def of_admission(found: dict[str, Any]) -> Iterator[Figure]:
    """Useful share, completion time and longest waits of the autopilot, and of what stands beside it."""
    for file, rows in found["medians"].items():
        for row in rows:
            if row["policy"] == "fifo-skip":
                continue
            flags = f" (`--durations {row['durations']} --telemetry off`)" if row["durations"] else ""
            name = f"{row['policy']}{flags}"
            exact = row["durations"] == "exact"
            goal = {"P1": ">= 0.90, <= 0.55, <= 1.00", "P2": ">= 0.95, <= 1.10, <= 1.10"}[file] if exact else "stated"
            if row["durations"] == "last-two" and file == "P1":
                goal = "mean completion below 0.75"
            draws = f"{row['seeds']} seed{'s' if row['seeds'] > 1 else ''}"
            value = f"{row['useful_ratio']:.3f}, {row['jct_ratio']:.2f}, {row['wait_ratio']:.2f} ({draws})"
            yield Figure(
                f"{file}, {name}: useful share of the bound; mean completion time and p99 wait against fifo-skip",
                value,
                goal,
            )


def of_preemption(found: dict[str, Any]) -> Iterator[Figure]:
    """Useful share, completion time, longest first starts and disruption when preemption and moves have a price.

    P1 and P2 with what stands beside, the other tenants against fifo-skip alone, and the curve over one weight.
    """
    goals = {file: f">= {USEFUL[file]:.3f}; <= {most_s:,.0f} s; below fifo-skip" for file, most_s in JCT_S.items()}
    for row in found["rows"]:
        disrupted = f"{row['preempted_per_1000']:.0f} + {row['moved_per_1000']:.0f}"
        share = f"{row['useful_ratio']:.3f}; {row['jct_s']:,.0f} s"
        if row["weight"] is not None:
            yield Figure(
                f"P1, `preemption.index_ratio` {row['weight']:g} ({LAST_TWO}): useful share; mean completion; "
                f"pauses + moves per 1,000 jobs",
                f"{share}; {disrupted}",
                "stated",
            )
        elif row["file"] in goals:
            yield Figure(
                f"{row['file']}, {row['policy']}{f' ({LAST_TWO})' if row['policy'] == 'autopilot' else ''}, a "
                f"pause or move costs 60 s of progress and 30 s of restore: useful share; mean completion; p99 "
                f"of the first start; pauses + moves per 1,000 jobs",
                f"{share}; {row['first_start_s_p99']:,.0f} s; {disrupted}",
                goals[row["file"]] if row["policy"] == "autopilot" else "stated",
            )
        elif row["policy"] == "autopilot":
            plain = next(each for each in found["rows"] if (each["file"], each["policy"]) == (row["file"], "fifo-skip"))
            jct, first = (row[key] / plain[key] for key in ("jct_s", "first_start_s_p99"))
            yield Figure(
                f"{row['file']}, another tenant, autopilot ({LAST_TWO}), the same: mean completion and p99 of "
                f"the first start against fifo-skip; pauses + moves per 1,000 jobs",
                f"{jct:.2f}; {first:.2f}; {disrupted}",
                "below 1; at most 1",
            )


def of_sim_speed(found: dict[str, Any]) -> Iterator[Figure]:
    """Jobs simulated per second: the slowest textbook order, and the others as they are."""
    textbook = {name: row for name, row in found["policies"].items() if name in TEXTBOOK}
    slowest = min(textbook, key=lambda name: float(textbook[name]["ratio"]))
    for name, row in found["policies"].items():
        if name == slowest:
            yield Figure(
                f"simulated jobs per second on P1, slowest textbook order ({name})",
                f"{row['jobs_per_s']:,.0f}",
                "10,000",
            )
        elif name not in TEXTBOOK:
            yield Figure(f"simulated jobs per second on P1, {name}", f"{row['jobs_per_s']:,.0f}", "stated")


def of_tick(found: dict[str, Any]) -> Iterator[Figure]:
    """CPU time of the slowest tick of each size, with shapes that repeat and with none alike."""
    sizes = sorted(
        {(row["nodes"], "differ" in row["tick"]) for row in found["ticks"]},
        key=lambda each: (-each[0], each[1]),
    )
    for size in sizes:
        rows = [row for row in found["ticks"] if (row["nodes"], "differ" in row["tick"]) == size]
        worst = max(rows, key=lambda row: float(row["whole_s"]))
        yield Figure(
            f"one tick of {8 * size[0]:,} GPUs with {worst['gangs']:,} pending gangs, slowest ({worst['tick']})",
            f"{worst['whole_s']:.2f} s of CPU",
            "under 1 s",
        )


def of_reclaim_storm(found: dict[str, Any]) -> Iterator[Figure]:
    """How long the last owner waits for what it is guaranteed, and what that costs."""
    title = f"{found['owners']} owners return at once to {found['gpus']:,} GPUs of {found['tenants']} tenants"
    yield Figure(
        f"{title}: the last has its guarantee back after",
        f"{found['restored_s_worst'] or float('inf'):.0f} s",
        f"{found['bound_s']:.0f} s (a grace and two ticks)",
    )
    yield Figure(
        f"{title}: work lost since its checkpoint, and for want of bandwidth to save it",
        f"{found['lost_since_checkpoint_gpu_s'] / 3600:,.0f} and {found['lost_no_bandwidth_gpu_s'] / 3600:,.0f} GPU-h",
        "stated",
    )


def of_victims(found: dict[str, Any]) -> Iterator[Figure]:
    """The search for victims against the exact optimum."""
    for row in found["families"]:
        worst = max(each["lost_ratio"] for each in row["rows"] if each["possible"] and each["answered"])
        gave_up = f", in {row['unanswered']} nobody found" if row["unanswered"] else ""
        yield Figure(
            f"victims {row['family']}, {row['possible']} instances: lost work by the exact optimum's, worst; "
            f"evicted GPUs by the least, 95th percentile",
            f"{worst:.2f}{gave_up}; {row['gpus_ratio_p95']:.2f}",
            "<= 1.10; <= 1.15",
        )


def of_tenants(found: dict[str, Any]) -> Iterator[Figure]:
    """Many tenants on one cluster: waits, the worst tenant, and what preemption costs; `las` is no bar."""
    best = {
        file: [
            min(row[key] for row in found["rows"] if row["file"] == file and row["policy"] in RIVALS)
            for key in ("wait_s", "slowdown")
        ]
        for file in {row["file"] for row in found["rows"]}
    }
    for row in found["rows"]:
        wait_s, slowdown = best[row["file"]]
        ours = row["policy"] not in ("fifo-skip", "las", *RIVALS)
        yield Figure(
            f"{row['file']}, {row['policy']}{f' ({LAST_TWO})' if ours else ''}: mean total wait; mean wait until "
            f"the first start; "
            "worst tenant's slowdown; preemptions + moves per 1,000 jobs; lost",
            f"{row['total_wait_s']:,.0f} s; {row['wait_s']:,.0f} s; {row['slowdown']:.2f}; "
            f"{row['preemptions_per_1000']:,.0f} + {row['moves_per_1000']:,.0f}; {row['lost_gpu_s'] / 3600:,.0f} GPU-h",
            f"first start below {wait_s:,.0f} s, slowdown below {slowdown:.2f}" if ours else "stated",
        )


def of_foresight(found: dict[str, Any]) -> Iterator[Figure]:
    """What run-time forecasts are worth to decisions, and how many reservations start late."""
    recorded = [row for row in found["rows"] if not row.get("draw")]
    rows = {(row["file"], row["policy"], row["durations"]): row for row in recorded}
    for (file, policy, mode), row in rows.items():
        if policy == "admission":
            met = row["kept"] + row["late"]
            yield Figure(
                f"{file}, policy admission (`--telemetry off`): reservations that started later than promised",
                f"{row['late']} of {met}",
                f"at most {100 * MOST_LATE:g} %",
            )
        elif mode == "predicted":
            last, own = rows[file, policy, "last-two"], row
            if file in RECOVERED:
                best = rows[file, policy, "exact"]["total_wait_s"]
                part = (last["total_wait_s"] - own["total_wait_s"]) / (last["total_wait_s"] - best)
                yield Figure(
                    f"{file}, autopilot (`--telemetry off`), average total wait with last-two, predicted, exact "
                    f"run times: part recovered",
                    f"{last['total_wait_s']:,.0f}, {own['total_wait_s']:,.0f}, {best:,.0f} s: {part:.2f}",
                    f">= {RECOVERED[file]:.2f}",
                )
            else:
                kinds = ("wait_s", "total_wait_s")
                yield Figure(
                    f"{file}, autopilot (`--telemetry off`), average wait until the first start, and in all, "
                    f"with predicted run times by that with last-two",
                    "; ".join(
                        f"{own[kind]:,.0f} by {last[kind]:,.0f} s: {own[kind] / last[kind]:.2f}" for kind in kinds
                    ),
                    f"<= {WAIT_RATIO}",
                )


def of_forecast_speed(found: dict[str, Any]) -> Iterator[Figure]:
    """What forecasting costs."""
    minute_s, retrain_s = sorted(found["minute_s"]), sum(found["retrain_s"].values())
    yield Figure(
        f"a minute's forecasts of {found['services']:,} services, requests and tokens; one job, 99th percentile",
        f"{minute_s[len(minute_s) // 2]:.2f} s; {found['job_ms_p99']:.1f} ms of CPU",
        "1 s; 10 ms",
    )
    yield Figure("a retrain of everything", f"{retrain_s:.0f} s of CPU", "180 s")


def of_serving_speed(found: dict[str, Any]) -> Iterator[Figure]:
    """Time to simulate a day of requests."""
    worst = max(found["rows"], key=lambda row: float(row["day_at_1000_rps_s"] or 0.0))
    yield Figure(
        f"simulating a day of inference at 1,000 requests/s, worst case ({worst['case']})",
        f"{worst['day_at_1000_rps_s']:.0f} s of CPU",
        "under 60 s",
    )


def of_journal_size(found: dict[str, Any]) -> Iterator[Figure]:
    """Size of the record of a day: telemetry as measured, and in the smallest form."""
    rows = sorted(found["large"], key=lambda row: float(row["mb_per_day"]))
    for row in (rows[-1], rows[0]):
        digits = "as measured" if row["significant_bits"] is None else f"kept to {row['significant_bits']} bits"
        yield Figure(
            f"journal of a day, {row['gpus']:,} GPUs, telemetry every {row['refresh_s']:.0f} s {digits}",
            f"{row['mb_per_day']:.0f} MB",
            "200 MB",
        )


BENCHMARKS: dict[str, Callable[[dict[str, Any]], Iterator[Figure]]] = {
    "parity": of_parity,
    "admission": of_admission,
    "preemption": of_preemption,
    "sim_speed": of_sim_speed,
    "tick": of_tick,
    "reclaim_storm": of_reclaim_storm,
    "victims": of_victims,
    "tenants": of_tenants,
    "foresight": of_foresight,
    "forecast_speed": of_forecast_speed,
    "serving_speed": of_serving_speed,
    "journal_size": of_journal_size,
}
"""Benchmarks of the table: file of `benchmarks/` and of `benchmarks/out`, and how its JSON is read."""


OPTIONS = {
    "serving_speed": " serving_speed --quick",
    "journal_size": " journal_size --quick",
}
"""How benchmarks are called whose rows are of a part: an hour of requests; 800 GPUs for some minutes."""


def refresh_figures() -> int:
    """Write the table; 1 when a benchmark left no JSON."""
    before = README.read_text(encoding="utf-8").splitlines()
    lines = ["| figure | measured | goal | command |", "|---|---|---|---|"]
    missing = []
    for name, read in BENCHMARKS.items():
        command, path = f"`python -m benchmarks{OPTIONS.get(name, ' ' + name)}`", OUT / f"{name}.json"
        if path.exists():
            rows = read(json.loads(path.read_text(encoding="utf-8")))
            lines += [f"| {row.what} | {row.value} | {row.goal} | {command} |" for row in rows]
        else:
            missing.append(name)
            kept = [line for line in before if line.startswith("| ") and line.endswith(f"| {command} |")]
            lines += kept or [f"| {name} | not measured here | | {command} |"]
    replace_part("figures", "\n".join(lines))
    if missing:
        print(
            f"no JSON in {OUT.relative_to(ROOT)}: run python -m benchmarks {' '.join(missing)}",
            file=sys.stderr,
        )
    return int(bool(missing))


def main() -> int:
    """Refresh the parts named, or all."""
    parts = sys.argv[1:] or ["demo", "figures"]
    unknown = set(parts) - {"demo", "figures"}
    if unknown:
        print(f"{', '.join(sorted(unknown))}: give demo, figures, or nothing for both", file=sys.stderr)
        return 2
    if "demo" in parts:
        refresh_demo()
    return refresh_figures() if "figures" in parts else 0


if __name__ == "__main__":
    raise SystemExit(main())
