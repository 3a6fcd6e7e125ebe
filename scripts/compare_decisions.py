"""Compare the decisions of this checkout with those of a commit: none may change where code only moves.

    python scripts/compare_decisions.py [--against COMMIT] [--only CASE,...] [--workers 1] [--keep FOLDER]

Each case is a simulation by the command line. Compared are its result, the rows of its jobs and every decision with its
words and figures (`autopilot decisions --json`), not the bytes of the journal: records may change, decisions may not.
The journal of COMMIT is then replayed by this checkout. `--keep` holds the outputs, and those of a commit are not made
again. P1 and P12 are slices of the Philly trace, skipped if `../shared/data` has none. The exit status is 1 if a case
differs; the first differing lines are printed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parent.parent
PHILLY = ROOT.parent / "shared" / "data" / "philly_jobs" / "jobs.parquet"
SHOWN_LINES = 12

SCENARIOS = {  # case: scenario, hours of it, policy
    "quickstart": ("quickstart", None, "autopilot"),
    "mixed": ("mixed", None, "autopilot"),
    "mixed-approve": ("mixed", 3, "approve"),
    "demo": ("demo", 3, "autopilot"),
    "burst-full": ("burst-full", 3, "autopilot"),
    "hoarders": ("hoarders", 1, "autopilot"),
    "hoarders-idle": ("hoarders", 1, "autopilot"),
    "mig-churn": ("mig-churn", 2, "regeometry"),
    "fragmented": ("fragmented", 6, "autopilot"),
    "spot-cascade": ("spot-cascade", None, "autopilot"),
    "faulty": ("faulty", 3, "autopilot"),
    "mig-nodes": ("mig-nodes", 2, "autopilot"),
}
SLICES = {  # case: tenants, jobs of them, cluster, policy
    "P1": (("vc_6c71a0",), 300, "7x8", "autopilot"),
    "P12": (("vc_6c71a0", "vc_b436b2"), 250, "17x8", "autopilot"),
}


def main() -> int:
    """Run each case here and there; 1 if one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--against", default="main", metavar="COMMIT")
    parser.add_argument("--only", default="", metavar="CASE,...")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    commit = _git("rev-parse", f"{given.against}^{{commit}}")
    with tempfile.TemporaryDirectory() as scratch:
        keep = given.keep or Path(scratch)
        calls = _calls(keep / "inputs")
        if unknown := set(filter(None, given.only.split(","))) - set(calls):
            parser.error(f"--only: no case {', '.join(sorted(unknown))}; there are {', '.join(calls)}")
        names = [name for name in calls if not given.only or name in given.only.split(",")]
        tree = Path(scratch) / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            with ThreadPoolExecutor(given.workers) as pool:
                outcomes = pool.map(lambda name: _compare(name, calls[name], tree, keep, commit), names)
                return max([_tell(name, found) for name, found in zip(names, outcomes, strict=True)], default=0)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _calls(folder: Path) -> dict[str, list[str]]:
    """The arguments of `simulate` for each case. Cut scenarios and traces are written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    calls = {}
    for name, (scenario, hours, policy) in SCENARIOS.items():
        content = yaml.safe_load((ROOT / "simulator" / "scenarios" / f"{scenario}.yaml").read_text(encoding="utf-8"))
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content | ({"horizon": f"{hours}h"} if hours else {})), encoding="utf-8")
        calls[name] = ["--scenario", str(path), "--policy", policy]
    if not PHILLY.is_file():
        print(f"skipped: {', '.join(SLICES)}: {PHILLY.name} of the Philly trace is not at hand", flush=True)
        return calls
    jobs = pq.read_table(PHILLY).to_pandas()
    for name, (tenants, count, cluster, policy) in SLICES.items():
        path = folder / f"{name}.csv"
        jobs[jobs.tenant.isin(tenants)].sort_values("submit_s").head(count).to_csv(path, index=False)
        calls[name] = ["--jobs", str(path), "--cluster", cluster, "--policy", policy, "--physics", "charged"]
        calls[name] += ["--telemetry", "off", "--durations", "last-two"]
    return calls


def _compare(name: str, call: list[str], tree: Path, keep: Path, commit: str) -> list[str]:
    """The differences between the two checkouts, as lines."""
    before, after = keep / commit / name, keep / "here" / name
    if not (before / "done").exists():
        _play(tree, call, before)
    _play(ROOT, call, after)
    for file in ("result.json", "jobs.csv", "decisions.json"):
        old, new = ((folder / file).read_text(encoding="utf-8") for folder in (before, after))
        if old != new:
            lines = difflib.unified_diff(
                old.splitlines(), new.splitlines(), f"{commit[:8]}/{file}", file, "", "", 0, ""
            )
            return [f"{file} differs", *(line[:300] for line, _ in zip(lines, range(SHOWN_LINES), strict=False))]
    replayed = _run(ROOT, ["replay", str(before / "run.journal")])
    return [] if replayed.returncode == 0 else ["replay differs", *replayed.stdout.splitlines()[-SHOWN_LINES:]]


def _play(checkout: Path, call: list[str], folder: Path) -> None:
    """Simulate by the code of `checkout`; its outputs go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    paths = ["--json", str(folder / "result.json"), "--jobs-out", str(folder / "jobs.csv")]
    journal = folder / "run.journal"
    for arguments in (
        ["simulate", *call, *paths, "--journal", str(journal)],
        ["decisions", "--journal", str(journal), "--json", str(folder / "decisions.json")],
    ):
        ended = _run(checkout, arguments)
        if ended.returncode != 0:
            raise SystemExit(f"autopilot {' '.join(arguments)}: {ended.stdout[-2000:]}")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    for one in result["policies"].values():
        one.pop("wall_s", None)  # of this machine
    (folder / "result.json").write_text(json.dumps(result, indent=1, sort_keys=True), encoding="utf-8")
    (folder / "done").touch()


def _run(checkout: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """One command of the product, by the code of `checkout`."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "autopilot.cli", *arguments]
    return subprocess.run(
        command, cwd=checkout, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )


def _tell(name: str, found: list[str]) -> int:
    print(f"{name}: {'equal' if not found else found[0]}", *found[1:], sep="\n  ", flush=True)
    return int(bool(found))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
