"""The worked example of docs/adding-a-verb.md, applied to a copy of the checkout."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.contracts.test_worked_example import ROOT, insert, run_python

USE = """
import tempfile
from dataclasses import replace
from pathlib import Path
from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import OutcomeKind
from autopilot.explain.proposals import proposal_words
from autopilot.records.memory import memory_text, read_memory_text
from simulator.running.cluster_actuator import ClusterActuator
from simulator.world.physics import IDEAL
from simulator.world.work import Jobs
from tests.kits.acting_kit import Acting
from tests.kits.cluster_kit import cluster_of, inventory
from tests.kits.core_world import decide, world
from tests.kits.ticking_world import EAGER
from tests.unit.actuators.test_node_cordon import Nodes


def look(now_s, memory, closed=False):
    seen = world("2x8", [], now_s, tick=round(now_s), xids={3: 144}, nodes={"cordoned": [closed, False]})
    return decide(seen, EAGER, memory)


first = look(0.0, ControllerMemory())
(proposal,), (effect,) = first.decision.plan.proposals, first.instructions
assert proposal.accepted and (effect.kind, effect.subject.uid) == ("quarantine", "node-0")
assert proposal_words(proposal) == "quarantine it: XID 144 on GPU-3 asks for a person's look"
memory = read_memory_text(memory_text(first.memory), "m.json")
assert memory.effects.in_flight == first.memory.effects.in_flight
again = look(5.0, memory)
assert not again.instructions and again.memory.effects.in_flight
assert not look(10.0, again.memory, closed=True).memory.effects.in_flight

cluster = cluster_of(Jobs(), inventory(2, 8), IDEAL)
name = cluster.inventory.nodes.id[0]
there = replace(effect, subject=replace(effect.subject, name=name, uid=name))
assert ClusterActuator(cluster).apply(there, 0.0).kind == OutcomeKind.DONE
assert cluster.hardware.cordoned[0]

acting = Acting(Path(tempfile.mkdtemp()))
node = replace(effect.subject, name="n1", uid="n1")
there = replace(effect, subject=node, deadline_s=acting.now_s + 60.0, fence=1)
assert KubernetesActuator(acting.api("quarantine"), Nodes(acting)).apply(there, acting.now_s).kind == OutcomeKind.DONE
assert acting.ask("GET", "/api/v1/nodes/n1")["spec"]["unschedulable"]
acting.close()
"""


def test_a_verb_is_seven_files(tmp_path: Path) -> None:
    """It is proposed, sent, seen, kept and told; the simulated cluster and an API server carry it out."""
    for name in ("autopilot", "collectors", "models", "simulator", "actuators", "apiserver", "tests", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.parquet", "data", "e2e"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    text = (ROOT / "docs" / "adding-a-verb.md").read_text(encoding="utf-8")
    verb, row, case, proposal, lever, lever_row, way, method, needs = re.findall(
        r"```(?:python|text)\n(.*?)```", text, flags=re.DOTALL
    )
    core, levers = tmp_path / "autopilot" / "core", tmp_path / "actuators" / "kubernetes" / "levers"
    table = core / "capabilities" / "verbs.py"
    (core / "recovery" / "quarantine.py").write_text(verb, encoding="utf-8")
    before = "from autopilot.core.geometry.recut import"
    insert(table, before, f"from autopilot.core.recovery.quarantine import Quarantine\n{before}")
    insert(table, '    "provision": Row', f'{row}    "provision": Row')
    cordoning = core / "recovery" / "cordoning.py"
    insert(cordoning, "CASES = (CORDON, UNCORDON)\n", case)
    insert(
        cordoning,
        "from autopilot.core.recovery import cordon\n",
        "from autopilot.core.recovery import cordon, quarantine\n",
    )
    insert(cordoning, "    for row in to_uncordon(", f"{proposal}    for row in to_uncordon(")
    (levers / "node_quarantine.py").write_text(lever, encoding="utf-8")
    insert(levers / "__init__.py", "    node_cordon,\n", "    node_cordon,\n    node_quarantine,\n")
    insert(levers / "__init__.py", "    node_cordon.LEVER,\n", f"    node_cordon.LEVER,\n{lever_row}")
    actuator = tmp_path / "simulator" / "running" / "cluster_actuator.py"
    insert(actuator, '            "cordon": self._cordon,\n', f'            "cordon": self._cordon,\n{way}')
    insert(actuator, "    def _offer(", f"{method}    def _offer(")
    cordon = '    Effect.CORDON: frozenset({"cordon"}),\n'
    insert(tmp_path / "autopilot" / "service" / "capping.py", cordon, needs)
    run_python(tmp_path, "-c", USE)
