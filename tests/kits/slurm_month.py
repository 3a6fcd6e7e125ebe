"""A generated month of a Slurm site, printed as `sacct` would print it, with its truth."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

MODELS = ("nvidia_h100_80gb", "a100", "l40s", "v100")
SLICES = ("a100_1g.10gb", "a100_3g.40gb", "nvidia_h100_2g.20gb")
NAMES = (
    "train",
    "two words",
    "a|b",
    "x;y^z",
    "line\nbreak",
    "tab\there",
    "None",
    "42",
    "1.batch",
    "Größe",
    "say `hi`",
    "a@@b",
)
ENDS = ("COMPLETED",) * 8 + ("FAILED", "TIMEOUT", "CANCELLED by 1001", "OUT_OF_MEMORY", "NODE_FAIL")
SEPARATORS = ("|", ";", "^", "\t", "@@", "~")
TIMES = ("%s", "", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%Y-%m-%dT%H:%M:%S%z", "%a %b %d %H:%M:%S %Y")


@dataclass(slots=True)
class Record:
    """One row of truth. Times in epoch seconds; None: did not happen."""

    job_id: str
    number: int
    name: str
    user: str
    account: str
    partition: str
    state: str
    submit: int
    eligible: int | None
    start: int | None
    end: int | None
    suspended: int
    limit: int | None
    gpus: int
    asked: int
    model: str
    profile: str
    nodes: int

    @property
    def run_s(self) -> int | None:
        """What Elapsed says of a job that ended."""
        ended = self.start is not None and self.end is not None
        return self.end - self.start - self.suspended if ended else None  # type: ignore[operator]


@dataclass(slots=True)
class Month:
    """Records in the order of their numbers; those of one id follow each other in time."""

    records: list[Record] = field(default_factory=list)


def generate(jobs: int, seed: int, begin: int = 1_790_900_000, days: int = 30) -> Month:
    """A month with arrays, heterogeneous jobs, suspensions, requeues, MIG slices, exclusive nodes and open jobs.

    It begins on 2 October 2026, so that the clocks of Berlin and New York go back within it.
    """
    draw = random.Random(seed)
    month, number = Month(), 1000
    clock = float(begin)
    while len(month.records) < jobs:
        clock += draw.expovariate(jobs / (days * 86_400.0)) * draw.choice((1, 1, 3))
        number += 1
        submit = int(clock)
        kind = draw.choices(("plain", "array", "het", "requeued", "waits", "runs", "never"), (70, 8, 5, 8, 3, 3, 3))[0]
        base = _record(draw, str(number), number, submit)
        if kind == "array":
            for task in range(draw.randint(2, 6)):
                one = _record(draw, f"{number}_{task}", number, submit, base)
                month.records.append(one)
        elif kind == "het":
            for offset in range(2):
                one = _record(draw, f"{number}+{offset}", number, submit, base)
                one.eligible, one.start, one.end, one.suspended = base.eligible, base.start, base.end, base.suspended
                month.records.append(one)
            number += 1
        elif kind == "requeued":
            first = base
            first.state = draw.choice(("REQUEUED", "PREEMPTED", "NODE_FAIL"))
            month.records.append(first)
            for _ in range(draw.randint(1, 2)):
                again = _record(draw, str(number), number, (first.end or 0) + 1, base)
                again.eligible = again.submit + 120
                again.start = again.eligible + draw.randint(0, 900)
                again.end = again.start + draw.randint(60, 20_000)
                again.suspended = 0
                first = again
                month.records.append(again)
                again.state = "PREEMPTED"
            again.state = "COMPLETED"
        else:
            if kind == "waits":
                base.state, base.start, base.end, base.suspended = "PENDING", None, None, 0
            elif kind == "runs":
                base.state, base.end, base.suspended = "RUNNING", None, 0
            elif kind == "never":
                base.state, base.end, base.start, base.suspended = "CANCELLED by 7", submit + 60, None, 0
            month.records.append(base)
    return month


def _record(draw: random.Random, job: str, number: int, submit: int, like: Record | None = None) -> Record:
    held = draw.random() < 0.1
    eligible = submit + (draw.randint(60, 40_000) if held else 0)
    start = eligible + int(draw.expovariate(1 / 1500))
    suspended = draw.randint(10, 4000) if draw.random() < 0.04 else 0
    end = start + draw.randint(1, 90_000) + suspended
    asked = draw.choice((1, 1, 1, 2, 4, 8, 16))
    exclusive = asked < 8 and draw.random() < 0.05
    sliced = asked <= 2 and not exclusive and draw.random() < 0.1
    kind = draw.choice(SLICES) if sliced else draw.choice(MODELS)
    limit = draw.choice((None, 3600, 86_400, 172_800))
    row = Record(
        job,
        number,
        name=draw.choice(NAMES),
        user=f"u{draw.randint(1, 30)}",
        account=f"lab-{draw.randint(1, 5)}",
        partition=draw.choice(("gpu", "long")),
        state=draw.choice(ENDS),
        submit=submit,
        eligible=eligible,
        start=start,
        end=end,
        suspended=suspended,
        limit=limit,
        gpus=8 if exclusive else asked,
        asked=asked,
        model=kind,
        profile="",
        nodes=max(1, asked // 8),
    )
    if sliced:
        row.model, row.profile = kind.rsplit("_", 1)
    if like is not None:
        row.name, row.user, row.account, row.partition = like.name, like.user, like.account, like.partition
        row.gpus, row.asked, row.model, row.profile, row.nodes = (
            like.gpus,
            like.asked,
            like.model,
            like.profile,
            like.nodes,
        )
        row.limit = like.limit
    return row


def clock(s: int) -> str:
    """[days-]hours:minutes:seconds."""
    days = f"{s // 86_400}-" if s >= 86_400 else ""
    return f"{days}{s % 86_400 // 3600:02}:{s % 3600 // 60:02}:{s % 60:02}"


def _tres(draw: random.Random, count: int, row: Record, *, named: bool, typed_only: bool) -> str:
    kind = f"{row.model}_{row.profile}" if row.profile else row.model
    parts = [f"billing={count}", "cpu=8", f"gres/gpu:{kind}={count}" if named else "", "mem=64G", f"node={row.nodes}"]
    parts += [] if typed_only and named else [f"gres/gpu={count}"]
    draw.shuffle(parts)
    return ",".join(part for part in parts if part)


def print_sacct(month: Month, seed: int, zone: str = "Europe/Berlin") -> tuple[str, dict[str, object]]:
    """The text of a dump in one of many forms, and its form."""
    draw = random.Random(seed)
    separator, form = draw.choice(SEPARATORS), draw.choice(TIMES)
    raw, minutes, typed_only, steps, bar = (draw.random() < 0.5 for _ in range(5))
    there = ZoneInfo(zone)

    def time(at: int | None) -> str:
        if at is None:
            return draw.choice(("Unknown", "None"))
        if form == "%s":
            return str(at)
        local = datetime.fromtimestamp(at, there)
        return local.strftime(form) if form else local.strftime("%Y-%m-%dT%H:%M:%S")

    def cells(row: Record) -> dict[str, str]:
        elapsed = row.run_s if row.run_s is not None else 77 if row.state == "RUNNING" else 0
        limit = row.limit
        return {
            "JobID": row.job_id,
            "JobName": row.name,
            "User": row.user,
            "Account": row.account,
            "Partition": row.partition,
            "State": row.state,
            "Submit": time(row.submit),
            "Eligible": time(row.eligible),
            "Start": time(row.start),
            "End": time(row.end),
            "ElapsedRaw" if raw else "Elapsed": str(elapsed) if raw else clock(elapsed),
            "Suspended": clock(row.suspended),
            "TimelimitRaw" if minutes else "Timelimit": "UNLIMITED"
            if limit is None
            else str(limit // 60)
            if minutes
            else clock(limit),
            "NNodes": str(row.nodes),
            "ReqTRES": _tres(draw, row.asked, row, named=bool(row.profile), typed_only=typed_only),
            "AllocTRES": _tres(draw, row.gpus, row, named=True, typed_only=typed_only) if row.start else "",
            "ExitCode": "0:0",
            "Reason": draw.choice(("None", "Priority", "")),
        }

    heads = list(cells(month.records[0]))
    draw.shuffle(heads)
    rows = list(month.records)
    if draw.random() < 0.5:
        draw.shuffle(rows)
    end = separator if bar else ""
    lines = [separator.join(heads) + end]
    for row in rows:
        shown = cells(row)
        lines.append(separator.join(shown[name] for name in heads) + end)
        if steps and row.start:
            lines.append(
                separator.join((shown | {"JobID": f"{row.job_id}.batch", "ReqTRES": ""})[name] for name in heads) + end
            )
    local = form not in ("%s", "%Y-%m-%dT%H:%M:%S%z")
    return "\n".join(lines) + "\n", {
        "separator": separator,
        "form": form,
        "zone": zone if local else "",
        "typed": typed_only,
    }
