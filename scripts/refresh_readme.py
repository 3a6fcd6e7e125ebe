"""Refresh the generated parts of README.md, docs/examples.md and docs/benchmarks.md.

    python scripts/refresh_readme.py demo      run the demo; update docs/images and the examples
    python scripts/refresh_readme.py figures   renew rows of docs/benchmarks.md from the JSON files in benchmarks/out
    python scripts/refresh_readme.py           both

Each part lies between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; a row of figures ends with its command. `figures`
runs no benchmark: rows of one without a JSON file stay as they are.
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
from math import ceil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autopilot.core.model.records import Code  # noqa: E402  # the checkout first, not an installed copy
from autopilot.core.model.snapshot import State  # noqa: E402
from autopilot.records.journal import JournalReader  # noqa: E402
from scripts import figure_rows  # noqa: E402
from scripts.figure_rows import Figure  # noqa: E402

README = ROOT / "README.md"
EXAMPLES = ROOT / "docs" / "examples.md"
FIGURES = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"
OUT = ROOT / "benchmarks" / "out"
PICTURES = ("utilization.svg",)
MOST_LINES = 24
README_LINES = 10
DEMO_FIGURES = (
    "guarantee shortfall",
    "longest guarantee shortfall of a queue",
    "work lost",
    "total wait, mean",
    "total wait, longest",
    "queue wait, mean",
    "queue wait, p99",
    "real utilization until the last arrival",
    "allocated until the last arrival",
    "requests over their objective",
    "preemptions",
    "moves",
)
"""Rows of what the demo prints that README shows."""


def replace_part(page: Path, name: str, content: str) -> None:
    """Put `content` between the markers of `name` in `page`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page.name}: needs exactly one {begin} and one {end}")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{begin}\n{content.strip()}\n{end}{tail}", encoding="utf-8")


# --- demo -----------------------------------------------------------------------------------------


class Shell:
    """Runs the checkout's `autopilot` with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def journal(self) -> Path:
        """The journal of the last run."""
        return self.folder / "gpu-autopilot" / "last.journal"

    def run(self, *arguments: str) -> str:
        """The output of a command, 100 columns wide."""
        environment = dict(os.environ, XDG_STATE_HOME=str(self.folder), COLUMNS="100", PYTHONPATH=str(ROOT))
        command = [sys.executable, "-m", "autopilot.cli", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"autopilot {' '.join(arguments)}: exit {done.returncode}: {done.stderr[-500:]}")
        home = re.escape(str(self.folder))
        return re.sub(home, "~/.local/state", done.stdout).rstrip()

    def shown(self, *arguments: str, lines: int = MOST_LINES) -> str:
        """A command and its output as a code block, cut after `lines` lines."""
        output = self.run(*arguments).splitlines()
        if len(output) > lines:
            output = [*output[:lines], f"... ({len(output) - lines:,} more lines)"]
        return block(" ".join(arguments), "\n".join(output))


def block(arguments: str, output: str) -> str:
    """A command and its output as Markdown."""
    return f"```console\n$ autopilot {arguments}\n{output}\n```"


def a_proposal(journal: Path) -> str:
    """The most instructive accepted proposal: an eviction, else backfill, else the widest start."""
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


def a_waiting_workload(journal: Path) -> tuple[str, str]:
    """A workload waiting for the most instructive reason, and a time for `--at`."""
    telling = (Code.RESERVED, Code.FRAGMENTED, Code.CAPACITY)
    best, found = len(telling), ("", "")
    with JournalReader(journal) as reader:
        for record in reader.decisions():
            refusals = record.decision.plan.refusals
            codes = [refusals.codes[code] for code in refusals.code.tolist()]
            rank = next((place for place, code in enumerate(telling) if code in codes), len(telling))
            if rank < best:
                row = int(refusals.workload[codes.index(telling[rank])])
                work = reader.at(record.number).observation.snapshot.workloads
                if work.state[row] == State.PENDING:  # not one that makes room and will wait again
                    best, found = rank, (str(work.id[row]), f"{ceil(record.now_s)}s")
    if not found[0]:
        raise SystemExit("no workload waits in the demo; choose another example")
    return found


DEMO_COMMAND = "`make demo`"


def compared(printed: str, headline: str) -> str:
    """The demo for README: the headline, a table of what it printed, and who is ahead and who is later."""
    _, names, *lines = printed.splitlines()
    policies = names.split()
    cells = {parts[0]: parts[1:] for line in lines if len(parts := re.split(r"\s{2,}", line)) == 1 + len(policies)}
    order = sorted(range(len(policies)), key=lambda at: policies[at] != "autopilot")
    table = [f"| | {' | '.join(policies[at] for at in order)} | command |", f"|{'---|' * (len(policies) + 2)}"]
    for figure in DEMO_FIGURES:
        if figure not in cells:
            raise SystemExit(f"the demo printed no row {figure}; correct DEMO_FIGURES")
        table.append(f"| {figure} | {' | '.join(cells[figure][at] for at in order)} | {DEMO_COMMAND} |")
    notes = [f"- {line}" for line in lines if " is ahead of " in line or " jobs ended later than under " in line]
    return "\n".join([f"**{headline}**", "", *table, "", *notes])


def refresh_demo() -> None:
    """Run the demo, copy its picture, and run the example commands on its journal."""
    with tempfile.TemporaryDirectory() as name:
        shell = Shell(Path(name))
        printed, _, result = shell.run("demo").partition("\n\n")
        replace_part(README, "demo", compared(printed, result.splitlines()[0]))
        IMAGES.mkdir(parents=True, exist_ok=True)
        for picture in PICTURES:
            shutil.copyfile(shell.folder / "gpu-autopilot" / "demo" / picture, IMAGES / picture)
        workload, at = a_waiting_workload(shell.journal)
        wait = ("explain", "--workload", workload, "--at", at)
        replace_part(README, "wait", shell.shown(*wait, lines=README_LINES))
        replace_part(EXAMPLES, "wait", shell.shown(*wait))
        replace_part(EXAMPLES, "explain", shell.shown("explain", a_proposal(shell.journal), lines=40))
        replace_part(EXAMPLES, "plan", shell.shown("plan"))
        replay = shell.shown("replay")
        replace_part(EXAMPLES, "replay", f"{replay}\n\n{shell.shown('replay', '--policy', 'recommend', lines=14)}")


# --- figures --------------------------------------------------------------------------------------


BENCHMARKS: dict[str, Callable[[dict[str, Any]], Iterator[Figure]]] = {
    "preemption": figure_rows.of_preemption,
    "sim_speed": figure_rows.of_sim_speed,
    "reclaim_storm": figure_rows.of_reclaim_storm,
    "tenants": figure_rows.of_tenants,
    "forecast_speed": figure_rows.of_forecast_speed,
    "kube_sync": figure_rows.of_kube_sync,
    "field": figure_rows.of_field,
    "serving_speed": figure_rows.of_serving_speed,
    "journal_size": figure_rows.of_journal_size,
    "showback": figure_rows.of_showback,
}
"""How the JSON in `benchmarks/out` becomes rows, by the name of the benchmark. Other rows are written by hand."""
QUICK = ("serving_speed", "journal_size")
"""Their rows are those of `--quick`."""


def refresh_figures() -> int:
    """Renew the rows of each benchmark with a JSON file; 1 if none has. README.md is written by hand."""
    page = FIGURES.read_text(encoding="utf-8").splitlines()
    renewed = []
    for name, rows_of in BENCHMARKS.items():
        path, command = OUT / f"{name}.json", f"`python -m benchmarks {name}{' --quick' if name in QUICK else ''}`"
        if path.exists():
            places = [place for place, line in enumerate(page) if line.endswith(f"| {command} |")]
            rows = rows_of(json.loads(path.read_text(encoding="utf-8")))
            page[places[0] : places[-1] + 1] = [
                f"| {row.what} | {row.value} | {row.goal} | {command} |" for row in rows
            ]
            renewed.append(name)
    FIGURES.write_text("\n".join(page) + "\n", encoding="utf-8")
    print(f"renewed: {', '.join(renewed) or f'nothing; {OUT.relative_to(ROOT)} has no JSON'}", file=sys.stderr)
    return int(not renewed)


def main() -> int:
    """Refresh the named parts, or all of them."""
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
