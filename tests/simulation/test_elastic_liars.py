"""A tenant that shapes its jobs to look short does not get more of a cluster whose queues share time by index."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.controller import Controller
from autopilot.core.model.work import holding_mask
from simulator.running.simulation import Simulation
from tests.kits.policies import elastic
from tests.simulation.kit import Setup, run

TENANTS = ("first", "second", "liar")
GPUS, END_S, PIECE_S = 16, 6 * 3600, 600
GAIN_RATIO = 1.1
CLUSTER = """
pools: [{name: default, nodes: 2, gpus_per_node: 8, gpu_model: A100-80GB}]
queues:
  - {name: first, guarantee: {A100-80GB: 4}}
  - {name: second, guarantee: {A100-80GB: 4}}
  - {name: liar, guarantee: {A100-80GB: 4}}
"""


def jobs(lie: str) -> str:
    """Three tenants that ask for six tenths of the cluster each, with jobs of an hour or so; one of them may lie."""
    rng = np.random.default_rng(5)
    lines = []
    for tenant in TENANTS:
        work_gpu_s, turn = 0.0, 0
        while work_gpu_s < 0.6 * GPUS * END_S:
            duration_s = int(np.clip(rng.lognormal(np.log(3600.0), 1.0), 120, END_S))
            gpus, submit_s = int(rng.choice([1, 2, 4])), int(rng.uniform(0.0, 0.8 * END_S))
            work_gpu_s, turn = work_gpu_s + duration_s * gpus, turn + 1
            size_s = PIECE_S if tenant == "liar" and lie in ("split", "restart") else duration_s
            for done_s in range(0, duration_s, size_s):
                name = f"{rng.integers(1 << 40):x}" if tenant == "liar" and lie == "names" else f"{tenant}-{turn}"
                begin_s = submit_s + (done_s if lie == "restart" else 0)
                piece_s = min(size_s, duration_s - done_s)
                lines.append((begin_s, f"{name}-{done_s}", tenant, piece_s, gpus))
    rows = (f"{name},{tenant},{begin_s},{piece_s},{gpus}\n" for begin_s, name, tenant, piece_s, gpus in sorted(lines))
    return "job_id,tenant,submit_s,duration_s,gpus\n" + "".join(rows)


def ends_once_counted(simulation: Simulation, _controller: Controller) -> None:
    """The run ends half an hour after what is counted, though work waits."""
    simulation.engine.horizon_s = END_S + 1800.0


@cache
def held_gpu_s(lie: str) -> float:
    """What the liar holds until `END_S`; work waits all that time."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
        (Path(folder) / "jobs.csv").write_text(jobs(lie), encoding="utf-8")
        world = build_world(
            SimulateOptions(
                jobs=Path(folder) / "jobs.csv",
                cluster=str(Path(folder) / "cluster.yaml"),
                physics="charged",
                telemetry="off",
            )
        )
        ran = run(world, Setup(policy=elastic(), durations="predicted", telemetry="off", change=ends_once_counted))
    assert ran.violated == set()
    held = 0.0
    for this, following in pairwise(ran.tape.moments):
        snapshot = this.observation.snapshot
        span_s = min(following.observation.now_s, END_S) - min(this.observation.now_s, END_S)
        mine = np.array([snapshot.names.tenants[code] == "liar" for code in snapshot.workloads.tenant.tolist()])
        held += span_s * float(snapshot.workloads.gpus[mine & holding_mask(snapshot.workloads)].sum())
    return held


@pytest.mark.parametrize("lie", [pytest.param("split", marks=pytest.mark.soak), "names", "restart"])
def test_a_liar_gains_a_tenth_at_most(lie: str) -> None:
    """Jobs split into pieces of ten minutes, names drawn at random, and pieces sent one by one to look young."""
    assert held_gpu_s(lie) <= GAIN_RATIO * held_gpu_s("honest")
