"""Recordings of a real Slurm scheduler: a folder with a workload, its site, and three runs of it.

Files of a folder: workload.csv, slurm.conf, setup.json, starts.csv, events.csv, and where needed accounts.txt,
topology.conf and at.csv. Offset 0 is 0.2 s after a whole second of the clock.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from simulator.baselines.slurm import accounts, config, topology
from simulator.baselines.slurm.accounts import Limits, Qos
from simulator.baselines.slurm.config import seconds
from simulator.baselines.slurm.model import Job, Node
from simulator.baselines.slurm.reservations import Reservation
from simulator.baselines.slurm.site import Site

_PRIORITIES = {"q_hi": 100, "q_mid": 40, "q_lo": 10, "e_low": 0, "e_mid": 40, "e_high": 100}
QOS = {
    "normal": Qos("normal"),
    "h_grp": Qos("h_grp", limits=Limits(group={"gres/gpu": 10})),
    "h_pu": Qos("h_pu", limits=Limits(user={"gres/gpu": 6})),
    "h_mj": Qos("h_mj", limits=Limits(jobs={"maxjobspu": 2})),
    **{name: Qos(name, priority=priority) for name, priority in _PRIORITIES.items()},
    "e_low": Qos("e_low", preempt_mode="requeue", grace_s=10),
    "e_mid": Qos("e_mid", priority=40, preempt_mode="requeue"),
    "e_high": Qos("e_high", priority=100, preempts=frozenset({"e_low", "e_mid"})),
}
"""The QOS of every recording, which its README defines; accounts.txt may define others."""


def second(time_s: float) -> int:
    """The whole second that Slurm keeps for a time of a recording; a log line is written some 10 ms later."""
    return floor(time_s + 0.19)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of events.csv."""

    run: int
    t: float
    job: str
    event: str
    by: str
    nodes: str
    note: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A workload and what the real scheduler did with it. `jobs` and `durations_s` are by key, in order."""

    name: str
    folder: Path
    jobs: dict[str, Job]
    durations_s: dict[str, float]
    kills_invalid: frozenset[str]
    starts: dict[str, dict[str, str]]
    events: tuple[Event, ...]
    setup: dict[str, Any]

    @property
    def runs(self) -> list[int]:
        """The numbers of the runs."""
        return sorted({each.run for each in self.events})

    def site(self, run: int) -> Site:
        """The site as it was in a run: the wall clock differs."""
        text = (self.folder / "slurm.conf").read_text(encoding="utf-8")
        nodes = _nodes(self.setup)
        names = [node.name for node in nodes]
        assoc, switches = self.folder / "accounts.txt", self.folder / "topology.conf"
        site = Site(
            nodes,
            config.parse(text, f"{self.folder.name}/slurm.conf"),
            accounts.parse(assoc.read_text(encoding="utf-8") if assoc.exists() else "", str(assoc), QOS),
            topology.parse(switches.read_text(encoding="utf-8"), names) if switches.exists() else None,
            clock_s=int(self.setup["runs"][run - 1].get("clock_mod_60_s") or 0),
        )
        if not site.config.topology:
            site.tree = None
        site.reservations = _reservations(self.folder / "at.csv", site)
        return site


def read(folder: Path) -> Recording:
    """Read a folder. Raises `InputError` where a file is missing."""
    for name in ("workload.csv", "slurm.conf", "setup.json", "starts.csv", "events.csv"):
        if not (folder / name).exists():
            raise InputError(f"{folder}: {name} is missing; name a folder of one recorded workload")
    settings = config.parse((folder / "slurm.conf").read_text(encoding="utf-8"), f"{folder.name}/slurm.conf")
    assoc = folder / "accounts.txt"
    tree = accounts.parse(assoc.read_text(encoding="utf-8") if assoc.exists() else "", str(assoc), QOS)
    jobs: dict[str, Job] = {}
    durations_s: dict[str, float] = {}
    kills: set[str] = set()
    for number, row in enumerate(_rows(folder / "workload.csv")):
        for job in _jobs(number, row, settings.default_partition, tree):
            jobs[job.key] = job
            durations_s[job.key] = float(row["duration_s"])
            if "kill-on-invalid-dep=yes" in (row.get("extra") or ""):
                kills.add(job.key)
    return Recording(
        folder.name,
        folder,
        jobs,
        durations_s,
        frozenset(kills),
        {row["job"]: row for row in _rows(folder / "starts.csv")},
        tuple(
            Event(int(r["run"]), float(r["t"]), r["job"], r["event"], r["by"], r["nodes"], r.get("note") or "")
            for r in _rows(folder / "events.csv")
        ),
        json.loads((folder / "setup.json").read_text(encoding="utf-8")),
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _nodes(setup: dict[str, Any]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for kind in setup["nodes"]:
        types = tuple(gpu["type"] for gpu in kind["gpus"] for _ in range(gpu["count"]))
        for _ in range(kind["count"]):
            nodes.append(Node(f"n{len(nodes) + 1}", kind["cpus"], types))
    return tuple(nodes)


def _jobs(number: int, row: dict[str, str], default: str, tree: accounts.Accounts) -> list[Job]:
    def get(name: str) -> str:
        return (row.get(name) or "").strip()

    extra = _options(get("extra"))
    account = get("account") or tree.account_of(get("user"))
    switches, _, wait = extra.get("switches", "").partition("@")
    limit = get("limit_s")
    whole = Job(
        get("job"),
        number,
        submit_s=float(get("submit_s")),
        name=extra.get("J") or extra.get("job-name") or get("job"),
        user=get("user"),
        account=account,
        qos=get("qos") or extra.get("qos") or tree.default_qos(account, get("user")),
        partition=get("partition") or default,
        nodes=int(get("nodes") or 1),
        gpus=int(get("gpus_per_node") or get("gpus") or 0),
        cpus=int(get("cpus") or 1),
        gpu_type=get("gpu_type"),
        limit_s=ceil(float(limit) / 60) * 60 if limit else inf,
        exclusive="exclusive" in extra,
        nice=int(extra.get("nice") or (100 if "nice" in extra else 0)),
        begin_s=float(get("begin_s") or 0),
        depends=get("depends"),
        reservation=extra.get("reservation", ""),
        switches=int(switches or 0),
        switch_wait_s=seconds(wait, "--switches") if wait else (300.0 if switches else 0.0),
    )
    if not get("array"):
        return [whole]
    return [*_elements(whole, get("array"))]


def _elements(whole: Job, text: str) -> list[Job]:
    ranges, _, most = text.partition("%")
    indices: list[int] = []
    for part in ranges.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        indices += range(int(first), int(last or first) + 1, int(step or 1))
    most_running = int(most or 0)
    return [
        replace(whole, key=f"{whole.key}_{index}", index=index, array=whole.key, array_running=most_running)
        for index in indices
    ]


def _options(text: str) -> dict[str, str]:
    """Options of sbatch by name; `-J one` and `--name=value`."""
    found: dict[str, str] = {}
    words = shlex.split(text)
    for k, word in enumerate(words):
        if word.startswith("--"):
            key, _, value = word[2:].partition("=")
            found[key] = value
        elif word.startswith("-") and k + 1 < len(words):
            found[word[1:]] = words[k + 1]
    return found


def _reservations(path: Path, site: Site) -> list[Reservation]:
    """The reservations that commands at a time create."""
    found = []
    for row in _rows(path) if path.exists() else ():
        if "create" not in row["command"] or "reservation" not in row["command"]:
            continue
        words = {k.lower(): v for k, _, v in (word.partition("=") for word in shlex.split(row["command"]))}
        at_s = float(row["at_s"])
        start = re.fullmatch(r"T0\+(\d+)|now(?:\+(\d+)(?:seconds?)?)?", words.get("starttime", "now"))
        begin_s = at_s if start is None or not start[1] else float(start[1])
        begin_s = at_s + float(start[2]) if start is not None and start[2] else begin_s
        length_s = seconds(words.get("duration", "infinite"), f"{path.name}: duration")
        found.append(
            Reservation(
                words["reservationname"],
                begin_s,
                begin_s + length_s,
                site.named(words.get("nodes", "")),
                frozenset(filter(None, words.get("users", "").split(","))),
                frozenset(filter(None, words.get("accounts", "").split(","))),
                since_s=at_s,
            )
        )
    return found
