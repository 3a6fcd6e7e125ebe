"""The settings of a site: `slurm.conf`, or the output of `scontrol show config` and `scontrol show partition`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from autopilot.core.model.errors import InputError

WEIGHTED = ("age", "fairshare", "jobsize", "partition", "qos")
"""The factors with a weight of their own."""
UNLIMITED = {"infinite", "unlimited", "-1", "4294967295"}
_SPACED = re.compile(r"\s*=\s*")
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")
_UNIT_S = {" sec": 1, " min": 60}


def seconds(text: str, where: str) -> float:
    """A time of Slurm (`30`, `5:00`, `1-00:00:00`, `30 sec`; a bare number is minutes); inf if unlimited."""
    word = text.strip().lower()
    if word in UNLIMITED:
        return inf
    if word[:-4].isdigit() and word[-4:] in _UNIT_S:  # as scontrol prints some
        return int(word[:-4]) * _UNIT_S[word[-4:]]
    found = _TIME.fullmatch(word)
    if found is None:
        raise InputError(f"{where}: {text!r} is no time; write it as D-HH:MM:SS or minutes")
    fields = [int(each) for each in found["clock"].split(":")]
    if found["days"] is not None:
        hours, minutes, rest = [*fields, 0, 0][:3]
        return int(found["days"]) * 86_400 + hours * 3600 + minutes * 60 + rest
    if len(fields) == 1:
        return fields[0] * 60
    hours, minutes, rest = [0, *fields][-3:]
    return hours * 3600 + minutes * 60 + rest


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. `nodes` is a host list, or ALL. `preempt_mode` is "" if the site's applies."""

    name: str
    nodes: str = "ALL"
    default: bool = False
    max_time_s: float = inf
    default_time_s: float | None = None
    tier: int = 1
    job_factor: int = 1
    preempt_mode: str = ""
    grace_s: int = 0
    billing: Mapping[str, float] = field(default_factory=dict)
    up: bool = True


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a site for the scheduler; the defaults are those of Slurm 22.05."""

    backfill: bool = True  # False: sched/builtin
    sched_interval_s: int = 60
    batch_sched_delay_s: int = 3
    bf_interval_s: int = 30
    bf_resolution_s: int = 60
    bf_window_s: float = 1440 * 60.0
    bf_max_job_test: int = 500
    bf_max_job_user: int = 0  # 0: no limit
    bf_max_job_part: int = 0
    bf_max_job_start: int = 0
    bf_array_plans: int = 20
    least_loaded: bool = False
    topology: bool = False
    multifactor: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)  # age, fairshare, jobsize, partition, qos
    tres_weights: Mapping[str, float] = field(default_factory=dict)
    max_age_s: float = 7 * 86_400.0
    half_life_s: float = 7 * 86_400.0
    calc_period_s: int = 300
    favor_small: bool = False
    fair_tree: bool = True
    max_tres: bool = False
    dampening: int = 1
    preempt: str = "none"  # none | qos | partition
    preempt_mode: str = "off"
    preempt_strict_order: bool = False
    preempt_reorder_count: int = 1
    preempt_youngest_first: bool = False
    cred_expire_s: int = 120
    kill_wait_s: int = 30
    message_timeout_s: int = 10
    over_time_limit_s: float = 0.0
    enforce_limits: bool = False
    enforce_qos: bool = False
    partitions: Mapping[str, Partition] = field(default_factory=dict)

    @property
    def default_partition(self) -> str:
        """The partition of a job without a stated one."""
        return next((name for name, each in self.partitions.items() if each.default), next(iter(self.partitions), ""))


def parse(text: str, where: str = "slurm.conf") -> Config:
    """Read `slurm.conf`, or the output of `scontrol show config` followed by that of `scontrol show partition`.

    Raises `InputError` for an unreadable value. Unknown keys are ignored.
    """
    values: dict[str, str] = {}
    records: list[dict[str, str]] = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.partition("#")[0].strip()
        if line.lower().startswith("partitionname="):
            records.append(_pairs(line))
        elif records and raw[:1].isspace() and " = " not in line:
            records[-1].update(_pairs(line))  # scontrol show partition: a record has several lines
        elif "=" in line and not _node(line):
            key, value = _SPACED.split(line, maxsplit=1)
            values[key.strip().lower()] = value.strip()
    default: dict[str, str] = {}
    partitions: dict[str, Partition] = {}
    for record in records:
        name = record.get("partitionname", "")
        if name.upper() == "DEFAULT":
            default.update(record)
        else:
            partitions[name] = _partition({**default, **record}, where)
    return _config(values, partitions or {"": Partition("", default=True)}, where)


def _node(line: str) -> bool:
    return line.lower().startswith(("nodename=", "switchname=", "downnodes="))


def _pairs(line: str) -> dict[str, str]:
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return {key.lower(): value for key, found, value in (word.partition("=") for word in words) if found}


def _partition(record: Mapping[str, str], where: str) -> Partition:
    name = record["partitionname"]
    place = f"{where}: partition {name}"
    mode = record.get("preemptmode", "").lower()
    stated = record.get("defaulttime", "none").lower()
    return Partition(
        name=name,
        nodes=record.get("nodes", "ALL"),
        default=record.get("default", "no").lower() == "yes",
        max_time_s=seconds(record.get("maxtime", "infinite"), place),
        default_time_s=None if stated in {"none", ""} else seconds(stated, place),
        tier=_number(record.get("prioritytier", "1"), place),
        job_factor=_number(record.get("priorityjobfactor", "1"), place),
        preempt_mode=mode,
        grace_s=_number(record.get("gracetime", "0"), place),
        billing=weights(record.get("tresbillingweights", ""), place),
        up=record.get("state", "up").lower() in {"up", "drain"},
    )


def weights(text: str, where: str) -> dict[str, float]:
    """`CPU=0.25,GRES/gpu=2.0` by lower-case name; "(null)" is nothing."""
    found: dict[str, float] = {}
    for part in text.replace("(null)", "").split(","):
        if not part.strip():
            continue
        key, _, value = part.partition("=")
        try:
            found[key.strip().lower()] = float(re.sub(r"[A-Za-z]+$", "", value))
        except ValueError:
            raise InputError(f"{where}: weight {part!r} is no NAME=NUMBER") from None
    return found


def _number(text: str, where: str) -> int:
    try:
        return int(float(re.sub(r"\s*(sec|min|usec|%)\b.*$", "", text.strip())))
    except ValueError:
        raise InputError(f"{where}: {text!r} is no number") from None


def _config(values: Mapping[str, str], partitions: Mapping[str, Partition], where: str) -> Config:
    scheduling = {
        key: value for key, _, value in (w.partition("=") for w in values.get("schedulerparameters", "").split(","))
    }
    auth = dict(part.partition("=")[::2] for part in values.get("authinfo", "").split(","))
    flags = {flag.strip().upper() for flag in values.get("priorityflags", "").split(",")}
    enforce = {word.strip().lower() for word in values.get("accountingstorageenforce", "").split(",")}
    preempt = values.get("preempttype", "").rpartition("/")[2].lower()
    mode = values.get("preemptmode", "off").lower().replace("gang", "").strip(", ")

    def count(key: str, usual: int) -> int:
        return _number(scheduling[key], f"{where}: {key}") if key in scheduling else usual

    def plain(key: str, usual: int) -> int:
        return _number(values[key], f"{where}: {key}") if key in values else usual

    def times(key: str, usual: float) -> float:
        return seconds(values[key], f"{where}: {key}") if key in values else usual

    usual = Config()
    return replace(
        usual,
        backfill="builtin" not in values.get("schedulertype", "backfill"),
        sched_interval_s=count("sched_interval", usual.sched_interval_s),
        batch_sched_delay_s=count("batch_sched_delay", usual.batch_sched_delay_s),
        bf_interval_s=count("bf_interval", usual.bf_interval_s),
        bf_resolution_s=count("bf_resolution", usual.bf_resolution_s),
        bf_window_s=60.0 * count("bf_window", 1440),
        bf_max_job_test=count("bf_max_job_test", usual.bf_max_job_test),
        bf_max_job_user=count("bf_max_job_user", 0),
        bf_max_job_part=count("bf_max_job_part", 0),
        bf_max_job_start=count("bf_max_job_start", 0),
        bf_array_plans=count("bf_max_job_array_resv", usual.bf_array_plans),
        least_loaded="CR_LLN" in values.get("selecttypeparameters", "").upper(),
        topology=values.get("topologyplugin", "").endswith("tree"),
        multifactor="multifactor" in values.get("prioritytype", "basic"),
        weights={name: plain(f"priorityweight{name}", 0) for name in WEIGHTED},
        tres_weights=weights(values.get("priorityweighttres", ""), f"{where}: PriorityWeightTRES"),
        max_age_s=times("prioritymaxage", usual.max_age_s),
        half_life_s=times("prioritydecayhalflife", usual.half_life_s),
        calc_period_s=int(times("prioritycalcperiod", usual.calc_period_s)),
        favor_small=values.get("priorityfavorsmall", "no").lower() in {"yes", "1"},
        fair_tree="NO_FAIR_TREE" not in flags,
        max_tres="MAX_TRES" in flags,
        dampening=max(plain("fairsharedampeningfactor", 1), 1),
        preempt={"qos": "qos", "partition_prio": "partition"}.get(preempt, "none"),
        preempt_mode=mode or "off",
        preempt_strict_order="preempt_strict_order" in scheduling,
        preempt_reorder_count=count("preempt_reorder_count", 1),
        preempt_youngest_first="preempt_youngest_first" in scheduling,
        cred_expire_s=_number(auth.get("cred_expire", "120"), f"{where}: AuthInfo"),
        kill_wait_s=plain("killwait", usual.kill_wait_s),
        message_timeout_s=plain("messagetimeout", usual.message_timeout_s),
        over_time_limit_s=times("overtimelimit", 0.0),
        enforce_limits=bool(enforce & {"limits", "qos", "all", "safe"}),
        enforce_qos=bool(enforce & {"qos", "all"}),
        partitions=partitions,
    )
