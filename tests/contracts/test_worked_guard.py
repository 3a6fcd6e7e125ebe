"""The worked example of docs/adding-a-guard.md, applied to a copy of the checkout."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.contracts.test_worked_example import ROOT, insert, run_python

USE = """
from autopilot.explain.proposals import code_words
from autopilot.core.model.records import Code
from tests.kits.core_world import AUTO, Disrupt, decide, evicted, holds, waits, with_policy, world

observation = world("1x8", [holds("v", 8), waits("w", 8)], 9000.0, kill_switch=False)
calm, wish = with_policy(AUTO, hysteresis={"dwell_s": 0.0}), Disrupt("w", ("v",))
assert evicted(decide(observation, calm, actions=wish.table)) == ["v"]
held = decide(observation, with_policy(calm, preemption={"most_taken": 7}), actions=wish.table)
assert evicted(held) == []
(proposal,) = held.decision.plan.proposals
assert [(v.code, v.value, v.threshold) for v in proposal.verdicts if not v.allowed] == [(Code.MOST_TAKEN, 8.0, 7.0)]
assert "take 8 GPUs from running work, at most 7" in code_words(Code.MOST_TAKEN, 8.0, 7.0)
"""


def test_a_guard_with_a_knob_is_six_files(tmp_path: Path) -> None:
    """It holds what passes its bound, in words; it passes the contract test of guards."""
    for name in ("autopilot", "collectors", "models", "simulator", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.parquet", "data", "e2e"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    text = (ROOT / "docs" / "adding-a-guard.md").read_text(encoding="utf-8")
    guard, row, knob, code, words, field = re.findall(r"```(?:python|text)\n(.*?)```", text, flags=re.DOTALL)
    core = tmp_path / "autopilot" / "core"
    (core / "guards" / "most_taken.py").write_text(guard, encoding="utf-8")
    insert(core / "capabilities" / "guards.py", "    mode,\n", "    mode,\n    most_taken,\n")
    insert(core / "capabilities" / "guards.py", "    (mode.NAME,", f"{row}    (mode.NAME,")
    insert(core / "model" / "policy" / "__init__.py", "    blast_ratio: Annotated", f"{knob}    blast_ratio: Annotated")
    insert(core / "model" / "codes.py", "    BLAST_RADIUS =", f"{code}    BLAST_RADIUS =")
    for path, lines in (("explain/proposals.py", words), ("report/advice.py", field)):
        insert(tmp_path / "autopilot" / path, "    Code.BLAST_RADIUS:", f"{lines}    Code.BLAST_RADIUS:")
    run_python(tmp_path, "-c", USE)
    contract = ("tests/contracts/test_guards.py", "-k", "most_taken")
    run_python(tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *contract)
