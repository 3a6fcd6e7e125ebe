"""The worked example of docs/adding-a-signal.md, applied to a copy of the checkout."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.contracts.test_worked_example import ROOT, insert, run_python

USE = """
import numpy as np
from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.intake.usage.activity import Activity, entity_activity
from autopilot.core.model.policy import Policy
from collectors.exposition import Scanner
from tests.kits.core_world import holds, snapshot
from tests.kits.idle_world import measured
from tests.simulation.guard_plants import world_of
from tests.simulation.kit import AUTOPILOT, Setup, run
from tests.kits.cluster_kit import gang
from simulator.world.work import Jobs

frame = Scanner().scan(('DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 61\\n',))
assert frame.values[SIGNALS.index("gpu_temp_c"), 0] == 61.0
snap = measured(snapshot("1x8", [holds("a", 1, start_s=0.0)]), {0: {"gpu_temp_c": 61.0}})
assert (snap.telemetry.means("gpu_temp_c")[:, 0] == 61.0).all()
assert entity_activity(snap, Policy())[0] == Activity.IDLE
jobs = Jobs()
jobs.add("one", "a", gang(8), 0.0, 600.0)
assert not run(world_of(jobs), Setup(policy=AUTOPILOT)).violated
"""


def test_a_signal_is_three_rows_and_its_use(tmp_path: Path) -> None:
    """It is read, stored and asked for by name; verdicts and the simulator go on as before."""
    for name in ("autopilot", "collectors", "models", "simulator", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.parquet", "data", "e2e"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    text = (ROOT / "docs" / "adding-a-signal.md").read_text(encoding="utf-8")
    row, field, way = re.findall(r"```text\n(.*?)   ```", text, flags=re.DOTALL)
    core = tmp_path / "autopilot" / "core"
    insert(
        core / "hardware" / "dcgm.py", ')\n"""The signals of the product.', f'{row})\n"""The signals of the product.'
    )
    insert(core / "hardware" / "dcgm.py", "    Field(156,", f"{field}    Field(156,")
    insert(core / "intake" / "ways_in.py", '    Signal("energy_mj",', f'{way}    Signal("energy_mj",')
    run_python(tmp_path, "-c", USE)
