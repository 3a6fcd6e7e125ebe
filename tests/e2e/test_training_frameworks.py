"""The checkpoint helper in real training frameworks: the code of docs/checkpoints.md, stopped and started again.

The product does not need them. `AUTOPILOT_TRAINING_PYTHON` names a Python that has torch, pytorch-lightning,
transformers with accelerate, or ray[train]; else this Python is asked. A test whose framework is absent is SKIPPED.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autopilot.checkpoint import EXIT_STOPPED
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.e2e

PYTHON = os.environ.get("AUTOPILOT_TRAINING_PYTHON", sys.executable)
FRAMEWORKS = ("torch", "pytorch_lightning", "transformers", "accelerate", "ray")
STEPS = 60
LONGEST_S = 400.0


@functools.cache
def present() -> frozenset[str]:
    """Those of `FRAMEWORKS` that the Python of the programs has."""
    code = f"import importlib.util as u; print(*[n for n in {FRAMEWORKS!r} if u.find_spec(n)])"
    return frozenset(subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def needs(*names: str) -> None:
    """Skip the test where one of these is absent."""
    missing = ", ".join(sorted(set(names) - present()))
    if missing:
        pytest.skip(f"{PYTHON} has no {missing}: install it, or name another Python in AUTOPILOT_TRAINING_PYTHON")


def code_under(heading: str) -> str:
    """The first Python block under a heading of docs/checkpoints.md."""
    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    found = re.search(rf"\n### {re.escape(heading)}\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert found is not None, f"docs/checkpoints.md has no code under {heading!r}"
    return found[1]


def start(arguments: Sequence[str], **more: str) -> subprocess.Popen[str]:
    """A program in the Python of the frameworks, with the checkout as a place of imports."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}
    return subprocess.Popen(
        [PYTHON, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def until(process: subprocess.Popen[str], line: str) -> list[str]:
    """Read what it prints up to a line."""
    assert process.stdout is not None
    seen = []
    for each in process.stdout:
        seen.append(each.rstrip("\n"))
        if line in each:
            return seen
    raise AssertionError("\n".join(seen[-40:]))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit status, and the rest of what it printed."""
    rest, _ = process.communicate(timeout=LONGEST_S)
    return process.returncode, rest


def goes_on(program: Callable[[], subprocess.Popen[str]], stop_at: str) -> None:
    """SIGTERM at a line: the program exits with 143 and its next run does the steps that are left, none twice."""
    first = program()
    seen = until(first, stop_at)
    first.send_signal(signal.SIGTERM)
    status, rest = ended(first)
    assert status == EXIT_STOPPED, rest
    second_status, second = ended(program())
    assert second_status == 0, second
    steps = [int(each) for each in re.findall(r"(?m)^step (\d+)$", "\n".join([*seen, rest, second]))]
    assert steps == list(range(STEPS))


DATA = """
import sys, time
import torch
from autopilot import checkpoint
STEPS, folder = int(sys.argv[1]), sys.argv[2]

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS
    def __getitem__(self, row):
        return {"x": torch.tensor([row / STEPS])}
"""

LOADER = """
with checkpoint.stoppable(STEPS, grace_s=60) as job:
    try:
        first = int(open(folder + "/step").read()) + 1
    except OSError:
        first = 0
    data = torch.utils.data.Subset(Data(), range(first, STEPS))
    loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context=sys.argv[3])
    rows = iter(loader)
    for step in range(first, STEPS):
        next(rows)
        print("step", step, flush=True)
        time.sleep(0.02)
        if job.should_checkpoint() or step == STEPS - 1:
            print(step, file=open(folder + "/step", "w"))
            job.acknowledge(step, folder)
        if job.should_stop():
            break
    workers = list(rows._workers)
    workers[0].terminate()
    workers[0].join(10)
    assert workers[0].exitcode is not None, "a worker does not end at SIGTERM"
"""

LIGHTNING = """
import glob
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        print("step", self.global_step, flush=True)
        time.sleep(0.02)
        return self.line(batch["x"]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(max_steps=STEPS, accelerator="cpu", callbacks=[Checkpoints(folder)], **quiet)
saved = sorted(glob.glob(folder + "/*.ckpt"))
with checkpoint.stoppable(grace_s=60):
    trainer.fit(Model(), torch.utils.data.DataLoader(Data(), num_workers=2), ckpt_path=saved[-1] if saved else None)
"""

TRANSFORMERS = """
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def forward(self, x):
        return {"loss": self.line(x).mean()}

class Told(TrainerCallback):
    def on_step_begin(self, args, state, control, **rest):
        print("step", state.global_step, flush=True)
        time.sleep(0.02)

quiet = dict(save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
arguments = TrainingArguments(folder, max_steps=STEPS, per_device_train_batch_size=1, dataloader_num_workers=2, **quiet)
trainer = Trainer(Model(), arguments, train_dataset=Data(), callbacks=[Checkpoints(), Told()])
with checkpoint.stoppable(grace_s=60):
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
"""

RAY = """
import json, os, sys
import ray
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def save(folder):
    print("saves", flush=True)
    with open(folder + "/state", "w") as opened:
        opened.write("1")

def loop(config):
    for step in range(3):
        save_if_due(step, {"step": step}, save)
    found = checkpoint.trainer()._ack
    with open(config["folder"] + "/answer", "w") as opened:
        json.dump([found.id, found.step, os.path.exists(found.path + "/state")], opened)

ray.init(num_cpus=6, include_dashboard=False, object_store_memory=100 * 2**20)
folder = sys.argv[1]
scaling, storing = train.ScalingConfig(num_workers=1), train.RunConfig(storage_path=folder, name="run")
trainer = DataParallelTrainer(loop, train_loop_config={"folder": folder}, scaling_config=scaling, run_config=storing)
trainer.fit()
"""


def written(path: Path, *parts: str) -> str:
    """A program of these parts."""
    path.write_text("\n".join(textwrap.dedent(part) for part in parts), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_data_loader_with_workers_ends_at_sigterm(tmp_path: Path, context: str) -> None:
    """The program saves and exits with 143; its workers, forked or not, end as they do without the helper."""
    needs("torch")
    body = "if __name__ == '__main__':\n" + textwrap.indent(LOADER.strip(), "    ")
    program = written(tmp_path / "program.py", DATA, body)
    goes_on(lambda: start([program, str(STEPS), str(tmp_path), context]), "step 20")


@pytest.mark.parametrize(
    ("heading", "body", "modules"),
    [
        ("PyTorch Lightning", LIGHTNING, ("torch", "pytorch_lightning")),
        ("Hugging Face Trainer", TRANSFORMERS, ("torch", "transformers", "accelerate")),
    ],
)
def test_the_callback_of_the_page_saves_and_resumes(
    tmp_path: Path, heading: str, body: str, modules: tuple[str, ...]
) -> None:
    """The callback is taken from the page as it is."""
    needs(*modules)
    program = written(tmp_path / "program.py", DATA, code_under(heading), body)
    goes_on(lambda: start([program, str(STEPS), str(tmp_path / "saved")]), "step 20")


def test_the_function_of_the_page_answers_a_request_in_ray_train(tmp_path: Path) -> None:
    """A worker sees the file of annotations; its report is stored before it is acknowledged."""
    needs("torch", "ray")
    (tmp_path / "request").write_text('{"id": "one"}')
    program = written(tmp_path / "program.py", code_under("Ray Train"), RAY)
    settings = {"GPU_AUTOPILOT_ANNOTATIONS": str(tmp_path / "request"), "RAY_USAGE_STATS_ENABLED": "0"}
    settings |= {"RAY_raylet_start_wait_time_s": "150"}  # on a busy machine it takes longer than its 30 s
    status, printed = ended(start([program, str(tmp_path)], **settings))
    assert status == 0, printed[-3000:]
    assert json.loads((tmp_path / "answer").read_text()) == ["one", 0, True]


EXAMPLE = str(ROOT / "examples" / "checkpoint_distributed.py")


def steps_of(printed: str, rank: int) -> list[int]:
    """The steps that a rank printed."""
    return [int(each) for each in re.findall(rf"rank {rank} step (\d+)", printed)]


def test_ranks_save_and_stop_at_the_same_step(tmp_path: Path) -> None:
    """SIGTERM reaches one of two ranks: both save once, exit with 143, and go on from the same step."""
    needs("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def ranks(step_s: str) -> list[subprocess.Popen[str]]:
        where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        options = [EXAMPLE, "--folder", str(tmp_path), "--steps", str(STEPS), "--step-s", step_s]
        return [start(options, RANK=str(rank), **where) for rank in range(2)]

    first = ranks("0.02")
    seen = until(first[1], "rank 1 step 20")
    first[1].send_signal(signal.SIGTERM)
    (status_1, rest_1), (status_0, rest_0) = ended(first[1]), ended(first[0])
    assert (status_0, status_1) == (EXIT_STOPPED, EXIT_STOPPED), rest_0 + rest_1
    last = [steps_of(rest_0, 0)[-1], steps_of("\n".join([*seen, rest_1]), 1)[-1]]
    assert last[0] == last[1]
    assert [path.name for path in tmp_path.glob("step-*.pt")] == [f"step-{last[0]:08d}.pt"]
    second = [ended(each) for each in ranks("0")]
    assert [status for status, _ in second] == [0, 0], second
    assert steps_of(second[0][1], 0) == list(range(last[0] + 1, STEPS))


def test_torchrun_gives_its_ranks_the_time_to_save(tmp_path: Path) -> None:
    """It passes SIGTERM on to both ranks and exits with 1 itself; the checkpoint is there, and training goes on."""
    needs("torch")
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE]
    options += ["--folder", str(tmp_path), "--steps", str(STEPS)]
    first = start([*options, "--step-s", "0.02"])
    seen = until(first, "rank 1 step 20")
    first.send_signal(signal.SIGTERM)
    status, rest = ended(first)
    assert status == 1, rest
    (saved,) = tmp_path.glob("step-*.pt")
    steps = steps_of("\n".join([*seen, rest]), 0)
    assert saved.name == f"step-{steps[-1]:08d}.pt"
    status, printed = ended(start(options))
    assert status == 0, printed
    assert steps + steps_of(printed, 0) == list(range(STEPS))
