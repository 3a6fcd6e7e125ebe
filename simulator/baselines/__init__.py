"""The policies compared with the autopilot, and the table of them.

They are policies of the engine alone: without a controller, decisions or a journal. They see no telemetry; the work
of their GPUs is measured all the same.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.baselines.easy import Easy
from simulator.baselines.kueue import Kueue
from simulator.baselines.las import LeastAttained
from simulator.baselines.slurm.policy import Slurm
from simulator.baselines.static import Static
from simulator.baselines.textbook import fifo, fifo_skip, gpu_time_skip, sjf, sjf_skip
from simulator.running.engine import Scheduler

BASELINES: dict[str, Callable[[], Scheduler]] = {
    "fifo": fifo,
    "fifo-skip": fifo_skip,
    "sjf": sjf,
    "sjf-skip": sjf_skip,
    "gpu-time-skip": gpu_time_skip,
    "las": LeastAttained,
    "easy": Easy,
    "static": Static,
    "kueue": Kueue,
    "slurm": Slurm,
}
"""The constructor of each one, by its name for `--policy`. `Static` also takes guaranteed nodes by tenant, `Kueue`
queues, `Slurm` a site.
"""

TEXTBOOK = ("fifo", "fifo-skip", "sjf", "sjf-skip", "gpu-time-skip")
"""The five textbook orders."""
