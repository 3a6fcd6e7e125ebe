"""Some forty jobs of all kinds for a real Slurm, and what they said themselves: when and where they ran, on which GPUs.

A job writes a line at its start and at its end by its own clock; prolog and epilog write the GPUs of each node.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tests.kits.prometheus_kit import until
from tests.kits.slurm_kit import NODES, SLICES, Cluster

MODEL_BY_INDEX: Mapping[str, Sequence[str]] = {
    name: [whole.partition(":")[0]] * int(whole.partition(":")[2])
    + [kind for kind, count in SLICES.items() if name == "n4" for _ in range(count)]
    for name, whole in NODES.items()
}
"""What each device file of a node is."""

SCRIPT = """#!/bin/bash
exec 5>> {said}/jobs.$SLURM_JOB_ID
say() {{ echo "$1 $(date +%s.%N) $SLURM_JOB_ID ${{SLURM_ARRAY_JOB_ID:-}} ${{SLURM_ARRAY_TASK_ID:-}}" >&5; }}
trap 'say end; exit 143' TERM
rest() {{ sleep "$1" & wait $!; }}
say start
{body}
say end
exit {exit}
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """A job of the workload. `body`: what it does, else it rests for `runs_s`. `eligible`: what it waits for before it
    may start: an action (`release`), the end of a job (`one`), or seconds from its submit; empty: nothing.
    """

    key: str
    options: str
    runs_s: float = 6.0
    status: str = "completed"
    user: str = "games"
    at_s: float = 0.0
    body: str = ""
    exit: int = 0
    name: str = ""
    eligible: str | float = ""


LONG_S = 900.0
FIRST, SECOND = (f"[ ${{SLURM_RESTART_COUNT:-0}} -lt {runs} ] && rest 900; rest 6" for runs in (1, 2))
"""Rests until it is stopped, in the first run or in the first two; then for six seconds."""
SHRINK = "rest 6; scontrol update jobid=$SLURM_JOB_ID NumNodes=1 >/dev/null; say resized; rest 6"
ASKS = (
    Ask("requeued-once", "--gres=gpu:a100:2", body=FIRST),
    Ask("one", "--gres=gpu:a100:1", 12),
    Ask("gang", "-p wide -N2 --gres=gpu:a100:4", 15),
    Ask("for-job", "--gpus=3", 9),
    Ask("for-tasks", "-n4 --gpus-per-task=1", 7),
    Ask("for-node", "--gpus-per-node=h100:2", 10),
    Ask("untyped", "--gres=gpu", 5),
    Ask("without", "--ntasks=2", 5),
    Ask("on-n2", "-w n2 --gres=gpu:2", 8),
    Ask("unlimited", "--gres=gpu:1 --time=UNLIMITED", 5),
    Ask("two-partitions", "-p wide,gpu --gres=gpu:1", 6),
    Ask("alone", "--exclusive --gres=gpu:a100:2", 6, at_s=1),
    Ask("by-twos", "--array=0-5%2 --gres=gpu:1", 9),
    Ask("some-fail", "--array=1,4,7 --gres=gpu:1", body="rest 5; [ $SLURM_ARRAY_TASK_ID = 4 ] && { say end; exit 2; }"),
    Ask("het", "--gres=gpu:a100:2 -n1 : --gres=gpu:h100:1 -n1", 8),
    Ask("held", "--hold --gres=gpu:1", 5, eligible="release"),
    Ask("later", "--begin=now+22 --gres=gpu:1", 5, eligible=22.0),
    Ask("after", "--dependency=afterok:{one} --gres=gpu:1", 5, eligible="one"),
    Ask("failed", "--gres=gpu:1", 4, "failed", exit=3),
    Ask("cancelled", "--gres=gpu:2", LONG_S, "cancelled"),
    Ask("never", "--begin=now+3600 --gres=gpu:1", status="none"),
    Ask("limited", "-w n1 --gres=gpu:1 --time=1", LONG_S, "timeout"),
    Ask("requeued", "--gres=gpu:1", body=SECOND),
    Ask("borrower", "--qos=low -p wide --gres=gpu:a100:2 -w n2", body=FIRST),
    Ask("owner", "--qos=high -p wide --exclusive -w n2 --gres=gpu:a100:8", 6, at_s=20),
    Ask("lost-node", "-p mig --gres=gpu:a100:1", body=FIRST),
    Ask("paused", "--gres=gpu:1", body="for i in {1..40}; do sleep 0.5; done"),
    Ask("slice", "-p mig --gres=gpu:a100_1g.10gb:1", 7),
    Ask("slices", "-p mig --gres=gpu:a100_3g.40gb:2", 7, user="mail"),
    Ask("shards", "--gres=shard:3", 8),
    Ask("steps", "--gres=gpu:2 -n2", body="srun -n1 --exact --gres=gpu:1 sleep 3\nsrun -n2 false\nsrun -n1 sleep 2"),
    Ask("bars", "--gres=gpu:1", 4, name="lr=0.1|bs=32|x"),
    Ask("lines", "--gres=gpu:1", 4, name="first line\nJobId=9 second|line"),
    Ask("quotes", "--gres=gpu:1", 4, name="it's \"quoted\"\tand; more, ünïcode"),
    Ask("industry", "-N2 --gres=gpu:4", 9, user="mail", at_s=2),
    Ask("shorter", "--gres=gpu:1 --time=30", 14),
    Ask("shrinks", "-p gpu -N2 --gres=gpu:a100:2", body=SHRINK),
    Ask("urgent", "--qos=high --gres=gpu:h100:8", 6, at_s=4),
    Ask("waits-held", "--hold --gres=gpu:1", status="pending"),
    Ask("waits-array", "--array=0-3 --begin=now+3600 --gres=gpu:2", status="pending", eligible=3600.0),
    Ask("runs", "--gres=gpu:h100:1 -n2", LONG_S, "running", at_s=30),
    Ask("stopped", "--gres=gpu:h100:1", LONG_S, "suspended", at_s=30),
    Ask("waits-room", "--gres=gpu:h100:8", status="pending", at_s=40),
)  # fmt: skip
AGAIN = "PENDING AGAIN"
"""The state of a job that has run and waits."""
ACTIONS = (
    ("early", "waits-held", "PENDING", 4, "sacct --allusers --duplicates --allocations --parsable2 --format ALL"),
    ("cancel-waiting", "never", "PENDING", 5, "scancel {}"),
    ("release", "held", "PENDING", 15, "scontrol release {}"),
    ("cancel", "cancelled", "RUNNING", 6, "scancel {}"),
    ("limit", "shorter", "RUNNING", 3, "scontrol update jobid={} timelimit=20"),
    ("requeue-1", "requeued", "RUNNING", 6, "scontrol requeue {}"),
    ("restart-1", "requeued", AGAIN, 4, "scontrol update jobid={} starttime=now"),
    ("requeue-2", "requeued", "RUNNING", 5, "scontrol requeue {}"),
    ("restart-2", "requeued", AGAIN, 3, "scontrol update jobid={} starttime=now"),
    ("requeue-once", "requeued-once", "RUNNING", 4, "scontrol requeue {}"),
    ("lose", "lost-node", "RUNNING", 20, "scontrol update nodename=n4 state=down reason=test"),
    ("restart-node", "lost-node", AGAIN, 5, "scontrol update jobid={} starttime=now"),
    ("suspend", "paused", "RUNNING", 4, "scontrol suspend {}"),
    ("resume", "paused", "SUSPENDED", 12, "scontrol resume {}"),
    ("restart-borrower", "borrower", AGAIN, 5, "scontrol update jobid={} starttime=now"),
    ("suspend-kept", "stopped", "RUNNING", 5, "scontrol suspend {}"),
)  # fmt: skip
"""(label, job, its state, seconds in this state, command with the number of the job); those of a job in this order."""
AT_THE_END = {"waits-held", "waits-array", "runs", "stopped", "waits-room"}
LOOK_S = 0.3
AT_ONCE = 4
"""Submits between two looks: on a busy machine each takes a second, and no action should be missed."""
ENDS = {"borrower": "preempted", "lost-node": "node_fail"}
RESTARTS = {"requeued": ("restart-1", "restart-2"), "lost-node": ("restart-node",), "borrower": ("restart-borrower",)}
REQUEUE_DELAY_S = 121.0
"""After a requeue Slurm lets a job start when two minutes and a second are over."""


@dataclass(slots=True)
class Truth:
    """One run of a job, task or component, or a part of one that was resized; times by the clock of this machine.

    `start_s` and `end_s` are what the job said, None where it did not happen. `gpus`: the devices of each node.
    `eligible_s` None: not known. `paused_s`: how long it was suspended.
    """

    ask: Ask
    start_s: float | None = None
    end_s: float | None = None
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    status: str = ""
    submit_s: float = 0.0
    eligible_s: float | None = None
    paused_s: float = 0.0

    @property
    def models(self) -> set[str]:
        """What the devices are."""
        return {MODEL_BY_INDEX[node][at] for node, found in self.gpus.items() for at in found}


@dataclass(slots=True)
class Told:
    """What the workload knows of itself: records by id as sacct prints it, in order; of each action, when it was done
    and what it printed.
    """

    records: dict[str, list[Truth]] = field(default_factory=dict)
    submit_s: dict[str, float] = field(default_factory=dict)
    done_s: dict[str, float] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)


def play(cluster: Cluster, longest_s: float = 240.0) -> Told:
    """Submit the jobs and carry out the actions; wait until all but those of `AT_THE_END` have ended."""
    told = Told()
    begin_s = time.monotonic()
    asks, actions = sorted(ASKS, key=lambda ask: ask.at_s), list(ACTIONS)
    since: dict[str, tuple[str, float]] = {}
    ran: set[str] = set()

    def over() -> bool:
        """One look: submit what is due, act where a job has been in its state for long enough."""
        now_s = time.monotonic()
        for ask in [ask for ask in asks if begin_s + ask.at_s <= now_s][:AT_ONCE]:
            asks.remove(ask)
            _submit(cluster, told, ask)
        states = cluster.states()
        waited: set[str] = set()
        for action in list(actions):
            label, key, state, seconds, command = action
            found = states.get(told.numbers.get(key, ""), "")
            if found == "RUNNING":
                ran.add(key)
            elif found == "PENDING" and key in ran:
                found = AGAIN
            if since.get(key, ("", 0.0))[0] != found:
                since[key] = (found, now_s)
            if key not in waited and found == state and now_s >= since[key][1] + seconds:
                told.printed[label] = cluster.run(*command.format(told.numbers[key]).split())
                told.done_s[label] = time.time()
                actions.remove(action)
            waited.add(key)
        ended = {re.split(r"[_+]", job)[0] for job in states} <= {told.numbers.get(key) for key in AT_THE_END}
        return ended and not asks and not actions

    until(over, "all jobs have ended", longest_s, LOOK_S)
    _read(cluster.folder / "said", told)
    return told


def _submit(cluster: Cluster, told: Told, ask: Ask) -> None:
    body = ask.body or f"rest {ask.runs_s:g}"
    script = SCRIPT.format(said=cluster.folder / "said", body=body, exit=ask.exit)
    options = [word.format_map(told.numbers) if "{" in word else word for word in shlex.split(ask.options)]
    told.submit_s[ask.key] = time.time()
    number = cluster.submit(script, f"--job-name={ask.name or ask.key}", *options, user=ask.user)
    told.numbers[ask.key] = number


Hook = tuple[float, str, str, tuple[int, ...]]
"""What a prolog or epilog said: when, which of them, node, GPUs."""


def _read(folder: Path, told: Told) -> None:
    """The records of every job from the lines that jobs, prologs and epilogs wrote."""
    hooks: dict[str, list[Hook]] = {}
    for line in (line for path in folder.glob("nodes.*") for line in path.read_text("ascii").splitlines()):
        what, said, job, node, gpus = line.split(" ")
        devices = tuple(int(each) for each in gpus.split(",") if each)
        hooks.setdefault(job, []).append((float(said), what, node, devices))
    asks = {ask.key: ask for ask in ASKS}
    by_number = {number: asks[key] for key, number in told.numbers.items()}
    for path in folder.glob("jobs.*"):
        lines = [line.split(" ") for line in path.read_text("ascii").splitlines()]
        _, _, number, array, task = lines[0]
        ask = by_number[array or number]
        name = f"{array}_{task}" if array else f"{number}+0" if ask.key == "het" else number
        told.records[name] = _records(ask, [(line[0], float(line[1])) for line in lines], hooks[number])
    leader = int(told.numbers["het"])  # a script runs in the first component alone
    begin, end = min(hooks[f"{leader + 1}"]), max(hooks[f"{leader + 1}"])
    told.records[f"{leader}+1"] = [Truth(asks["het"], begin[0], end[0], {begin[2]: begin[3]})]
    for key in ("waits-held", "waits-room", *(f"waits-array_{task}" for task in range(4))):
        plain, _, task = key.partition("_")
        told.records[told.numbers[plain] + (f"_{task}" if task else "")] = [Truth(asks[plain])]
    _states(told)


def _records(ask: Ask, lines: Sequence[tuple[str, float]], hooks: Sequence[Hook]) -> list[Truth]:
    """The runs of one job, and the parts of a run that was resized."""
    records: list[Truth] = []
    starts = [0.0, *(at_s for what, at_s in lines if what == "start"), inf]
    for what, at_s in lines:
        if what == "start":
            before_s, after_s = starts[starts.index(at_s) - 1], starts[starts.index(at_s) + 1]
            here = {  # after a requeue to the same node there may be no prolog
                node: gpus
                for s, kind, node, gpus in hooks
                if (before_s < s <= at_s if kind == "prolog" else at_s < s < after_s)
            }
            records.append(Truth(ask, at_s, gpus=here))
            continue
        records[-1].end_s = at_s
        if what == "resized":
            records[-1].status = "resizing"
            records.append(Truth(ask, at_s, gpus=dict([min(records[-1].gpus.items())])))
    return records


def _states(told: Told) -> None:
    """The state of each record, its submit, and the time from which it could start."""
    done = told.done_s
    for name, records in told.records.items():
        ask = records[0].ask
        for at, record in enumerate(records):
            record.status = record.status or (ask.status if at == len(records) - 1 else ENDS.get(ask.key, "requeued"))
            record.submit_s = told.submit_s[ask.key]
            again = RESTARTS.get(ask.key, ())
            if at == 0 or records[at - 1].status == "resizing":
                record.eligible_s = _eligible_s(told, ask)
            elif again:
                record.eligible_s = done[again[at - 1]]
            else:
                record.eligible_s = (records[at - 1].end_s or 0.0) + REQUEUE_DELAY_S
        if name.endswith(("_4", "_7")) and ask.key == "some-fail":
            records[-1].status = "failed" if name.endswith("_4") else "completed"
        if ask.key == "by-twos" and int(name.partition("_")[2]) >= 2:  # two tasks at a time
            records[0].eligible_s = None
        if ask.key == "paused":
            records[0].paused_s = done["resume"] - done["suspend"]


def _eligible_s(told: Told, ask: Ask) -> float | None:
    """When the first run of a job could start at the earliest."""
    if isinstance(ask.eligible, float):
        return told.submit_s[ask.key] + ask.eligible
    if ask.eligible in told.numbers:
        return told.records[told.numbers[ask.eligible]][-1].end_s
    return told.done_s[ask.eligible] if ask.eligible else told.submit_s[ask.key]
