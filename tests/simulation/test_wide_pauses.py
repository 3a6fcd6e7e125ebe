"""A wide gang that others could only use in part is not paused: the checker of the blast radius looks on."""

from __future__ import annotations

from pathlib import Path

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate

HEAD = "job_id,tenant,submit_s,duration_s,gpus,nodes,preemptible,topology\n"


def test_forty_gpus_are_not_taken_so_that_eight_can_start(tmp_path: Path) -> None:
    """`wide` has half of each of ten nodes; `short` could use two of them, and those behind it need whole nodes."""
    rows = [
        "firm,t,0,20000,40,10,false,spread",
        "wide,t,10,15000,40,10,true,spread",
        "short,t,4000,600,8,2,true,spread",
    ]
    rows += [f"next-{number},t,4000,900,8,1,true,node" for number in range(3)]
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    (played,) = simulate(
        SimulateOptions(
            jobs=jobs,
            cluster="10x8",
            policies=("autopilot",),
            physics="charged",
            telemetry="off",
            durations="exact",
            seed=1,
            series=False,
            journal=tmp_path / "run.journal",
        )
    ).policies
    assert played.simulated.found.violations == ()
    assert played.simulated.run.complete
    assert played.simulated.accounts.preemptions == 0
