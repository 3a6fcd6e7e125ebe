"""A training program that writes a checkpoint when the cluster asks for one, and continues from it.

It has the shape of a PyTorch program (a model and an optimizer with `state_dict` and `load_state_dict`) and runs on a
CPU without PyTorch: `python examples/checkpoint_training.py --folder ckpt --steps 200`. The lines marked with (*) are
all that gpu-autopilot adds. docs/checkpoints.md has the manifest of its pod.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autopilot import checkpoint  # (*) in an image: the copy of autopilot/checkpoint.py

State = dict[str, Any]


class Model:
    """A line that is fitted to points."""

    def __init__(self) -> None:
        self.slope, self.offset = 0.0, 0.0

    def state_dict(self) -> State:
        """The weights."""
        return {"slope": self.slope, "offset": self.offset}

    def load_state_dict(self, state: State) -> None:
        """Take over saved weights."""
        self.slope, self.offset = state["slope"], state["offset"]


class Momentum:
    """Gradient descent with momentum: its own state is lost with a checkpoint of the weights alone."""

    def __init__(self, model: Model, rate: float = 0.01, decay: float = 0.9) -> None:
        self.model, self.rate, self.decay = model, rate, decay
        self.speed = [0.0, 0.0]

    def state_dict(self) -> State:
        """The momentum."""
        return {"speed": self.speed}

    def load_state_dict(self, state: State) -> None:
        """Take over saved momentum."""
        self.speed = list(state["speed"])

    def step(self, gradient: tuple[float, float]) -> None:
        """Move the weights."""
        self.speed = [self.decay * v - self.rate * g for v, g in zip(self.speed, gradient, strict=True)]
        self.model.slope += self.speed[0]
        self.model.offset += self.speed[1]


def train_step(model: Model, optimizer: Momentum, step: int) -> float:
    """One step on the data of that step; its loss. The data follows from the step, so nothing else has to be saved."""
    x = (step * 37 % 100) / 100
    error = model.slope * x + model.offset - (3.0 * x + 1.0)
    optimizer.step((2 * error * x, 2 * error))
    return error * error


def save(folder: Path, step: int, model: Model, optimizer: Momentum) -> Path:
    """Write a checkpoint that is whole or absent: another name first, then the rename."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.json"
    fresh = path.with_suffix(".partial")
    with fresh.open("w", encoding="utf-8") as opened:
        json.dump({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, opened)
        opened.flush()
        os.fsync(opened.fileno())
    return fresh.replace(path)


def restore(folder: Path, model: Model, optimizer: Momentum) -> int:
    """Load the newest checkpoint; the step to begin with."""
    saved = sorted(folder.glob("step-*.json"))
    if not saved:
        return 0
    state = json.loads(saved[-1].read_text(encoding="utf-8"))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]) + 1


def train(
    job: checkpoint.Trainer, folder: Path, steps: int, every: int, after_step: Callable[[int], None] | None = None
) -> Model:
    """Train to the last step, or until the pod is stopped; the model."""
    model = Model()
    optimizer = Momentum(model)
    for step in range(restore(folder, model, optimizer), steps):
        train_step(model, optimizer, step)
        job.heartbeat(step)  # (*)
        if job.should_checkpoint() or (step + 1) % every == 0 or step + 1 == steps:  # (*) its first half
            path = save(folder, step, model, optimizer)
            job.acknowledge(step, str(path))  # (*)
        if after_step is not None:
            after_step(step)
        if job.should_stop():  # (*)
            break
    return model


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train with checkpoints on request.")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the checkpoints, on storage that stays")
    parser.add_argument("--steps", type=int, default=200, help="steps to train")
    parser.add_argument("--every", type=int, default=100, help="steps between two periodic checkpoints")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that a step takes, to watch it")
    parser.add_argument("--grace-s", type=float, default=30.0, help="terminationGracePeriodSeconds of the pod")
    chosen = parser.parse_args()

    def after_step(step: int) -> None:
        print(f"step {step}", flush=True)
        time.sleep(chosen.step_s)

    with checkpoint.stoppable(chosen.steps, chosen.grace_s) as job:  # (*) exit status 143 if it is stopped before
        model = train(job, chosen.folder, chosen.steps, chosen.every, after_step)
    print(json.dumps(model.state_dict()))


if __name__ == "__main__":
    main()
