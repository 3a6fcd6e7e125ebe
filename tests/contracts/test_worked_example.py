"""The worked example of docs/adding-an-action.md, applied to a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-an-action.md"
SIMULATION = """
from dataclasses import replace
from autopilot.core.model.policy import Mode
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang
from tests.simulation.guard_plants import world_of
from tests.simulation.kit import AUTOPILOT, Setup, run

jobs = Jobs()
jobs.add("late", "a", gang(8), 0.0, 7200.0, limit_s=600.0)
for number in range(6):
    jobs.add(f"job-{number}", "ab"[number % 2], gang(2), 60.0 * number, 900.0)
policy = replace(AUTOPILOT, modes=replace(AUTOPILOT.modes, stop_late=Mode.AUTO))
ran = run(world_of(jobs), Setup(policy=policy))
made = [each for moment in ran.tape.moments for each in moment.decision.plan.proposals if each.action == "stop_late"]
assert any(each.accepted for each in made), "it proposed nothing"
assert not ran.violated, ran.violated
"""


def _blocks() -> list[str]:
    return re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def insert(path: Path, anchor: str, text: str) -> None:
    """Replace what is in the file exactly once."""
    source = path.read_text(encoding="utf-8")
    assert source.count(anchor) == 1, f"{path.name}: {anchor!r}"
    path.write_text(source.replace(anchor, text), encoding="utf-8")


def test_the_example_works_as_written(tmp_path: Path) -> None:
    """Four files are touched; contract tests, explanation and a simulation under all checkers pass."""
    for name in ("autopilot", "collectors", "models", "simulator", "scripts", "tests", "docs"):
        # with what is compiled
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.parquet"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    action, row, mode, scene = _blocks()
    core = tmp_path / "autopilot" / "core"
    (core / "recovery" / "stop_late.py").write_text(action, encoding="utf-8")
    table = core / "capabilities" / "actions.py"
    insert(table, "import enforce_limit, recover\n", "import enforce_limit, recover, stop_late\n")
    last = next(line for line in table.read_text(encoding="utf-8").splitlines() if "enforce_limit.ACTION" in line)
    insert(table, f"{last}\n", f"{last}\n{row}")
    insert(core / "model" / "modes.py", "\n    def on(self", f"{mode}\n    def on(self")
    scenes = tmp_path / "tests" / "golden" / "explanation_scenes.py"
    insert(scenes, '}\n"""Small worlds', f'{scene}}}\n"""Small worlds')
    touched = {
        "core/recovery/stop_late.py",
        "core/capabilities/actions.py",
        "core/model/modes.py",
        "explanation_scenes.py",
    }
    assert f"touches {len(touched)} files by hand" in PAGE.read_text(encoding="utf-8")
    run_python(tmp_path, "-m", "tests.golden.refresh")
    run_python(tmp_path, "scripts/generate_policy_reference.py")
    words = (tmp_path / "tests" / "golden" / "words" / "explanations.json").read_text(encoding="utf-8")
    assert "suspend it (8 GPUs): it is 50 s past its run-time limit" in words
    contracts = ("tests/contracts/test_actions.py", "tests/golden/test_explanations.py")
    run_python(tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *contracts)
    run_python(tmp_path, "-c", SIMULATION)


def run_python(folder: Path, *arguments: str) -> None:
    """Python in a copy of the checkout succeeds."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
