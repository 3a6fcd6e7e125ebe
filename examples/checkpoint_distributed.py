"""Data-parallel training with PyTorch whose ranks save, and stop, at the same step.

    torchrun --nproc-per-node 2 examples/checkpoint_distributed.py --folder ckpt --steps 200

A request, or SIGTERM, reaches the ranks at different moments. `any_rank` is an all-reduce of the flag: all ranks take
the same branch. docs/checkpoints.md has more about torchrun. It runs on CPUs (gloo), and on GPUs (nccl).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autopilot import checkpoint  # in an image: the copy of autopilot/checkpoint.py

DEVICE = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
)


def any_rank(flag: bool) -> bool:
    """Whether the flag is True on any rank. Every rank has to call it."""
    found = torch.tensor(int(flag), device=DEVICE)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())


def save(folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    """The first rank writes, under another name and then by a rename; all wait until it is there."""
    path = folder / f"step-{step:08d}.pt"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".partial")
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
        fresh.rename(path)
    dist.barrier()
    return path


def restore(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint; the step to begin with."""
    saved = sorted(folder.glob("step-*.pt"))
    if not saved:
        return 0
    state = torch.load(saved[-1], map_location=DEVICE)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]) + 1


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train on several ranks with checkpoints on request.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder of the checkpoints, on storage that all share"
    )
    parser.add_argument("--steps", type=int, default=200, help="steps to train")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that a step takes, to watch it")
    parser.add_argument("--grace-s", type=float, default=30.0, help="terminationGracePeriodSeconds of the pod")
    chosen = parser.parse_args()
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    with checkpoint.stoppable(chosen.steps, chosen.grace_s, any_rank) as job:
        for step in range(restore(chosen.folder, model, optimizer), chosen.steps):
            optimizer.zero_grad()
            model(torch.full((2, 4), 0.01 * step, device=DEVICE)).square().mean().backward()
            optimizer.step()
            time.sleep(chosen.step_s)
            job.heartbeat(step)
            if job.should_checkpoint() or step + 1 == chosen.steps:
                job.acknowledge(step, str(save(chosen.folder, step, model, optimizer)))
            print(f"rank {dist.get_rank()} step {step}", flush=True)
            if job.should_stop():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
