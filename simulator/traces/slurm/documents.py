"""The JSON of `sacct --json`, `squeue --json` and `scontrol show job --json`, as rows of the same fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from simulator.traces.slurm.text import Rows

UNLIMITED = "UNLIMITED"
ENDED_LATER = ("RUNNING", "SUSPENDED", "PENDING", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING")
"""States whose end, as `squeue` gives it, is a limit or a plan."""

HEADERS = (
    "JobID",
    "JobIDRaw",
    "JobName",
    "User",
    "Account",
    "Partition",
    "QOS",
    "Cluster",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "ElapsedRaw",
    "Suspended",
    "TimelimitRaw",
    "NNodes",
    "NCPUS",
    "ReqTRES",
    "AllocTRES",
    "NodeList",
)


def read_document(path: Path, text: str) -> Rows:
    """The jobs of a document. Raises `InputError` if it is damaged or lists none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON document: {error}; write it again with sacct --json") from error
    jobs = document.get("jobs") if isinstance(document, dict) else document
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{path}: the document lists no jobs; give the output of sacct --json or squeue --json")
    try:
        cells = [_of_sacct(job) if "time" in job else _of_squeue(job) for job in jobs]
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: not the JSON of sacct or squeue: {error!r}; give sacct --parsable2 output"
        ) from error
    return Rows(list(HEADERS), cells, list(range(1, len(cells) + 1)), separator="")


def _number(value: Any) -> str:
    """A number as Slurm writes it in any version: plain, or with `set` and `infinite`; empty if it is not set."""
    if isinstance(value, Mapping):
        if value.get("infinite"):
            return UNLIMITED
        value = value.get("number") if value.get("set", True) else None
    if value is None or isinstance(value, bool):
        return ""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _state(value: Any) -> str:
    """The first word of a state (newer versions write a list)."""
    words = value if isinstance(value, list) else [value]
    return str(words[0] or "") if words else ""


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _job_id(job: Mapping[str, Any], array: Any, task: Any, tasks: Any, het: Any, offset: Any) -> str:
    number, array_id, het_id = _number(job.get("job_id")), _number(array), _number(het)
    if het_id not in ("", "0"):
        return f"{het_id}+{_number(offset) or '0'}"
    if array_id not in ("", "0"):
        task_id = _number(task)
        if tasks and not task_id:
            return f"{array_id}_[{tasks}]"
        if task_id:
            return f"{array_id}_{task_id}"
    return number


def _tres(items: Sequence[Mapping[str, Any]]) -> str:
    names = (
        (
            f"{item.get('type')}/{item['name']}" if item.get("name") else str(item.get("type")),
            _number(item.get("count")),
        )
        for item in items or ()
    )
    return ",".join(f"{name}={count}" for name, count in names if count)


def _of_sacct(job: Mapping[str, Any]) -> list[str]:
    time, array, het, tres = (job.get(name) or {} for name in ("time", "array", "het", "tres"))
    association = job.get("association") or {}
    return [
        _job_id(
            job, array.get("job_id"), array.get("task_id"), array.get("task"), het.get("job_id"), het.get("job_offset")
        ),
        _number(job.get("job_id")),
        _text(job.get("name")),
        _text(job.get("user") or association.get("user")),
        _text(job.get("account") or association.get("account")),
        _text(job.get("partition")),
        _text(job.get("qos")),
        _text(job.get("cluster")),
        _state((job.get("state") or {}).get("current")),
        *(_number(time.get(name)) for name in ("submission", "eligible", "start", "end")),
        _number(time.get("elapsed")),
        _number(time.get("suspended")),
        _number(time.get("limit")),
        _number(job.get("allocation_nodes")),
        _number((job.get("required") or {}).get("CPUs")),
        _tres(tres.get("requested") or ()),
        _tres(tres.get("allocated") or ()),
        _text(job.get("nodes")),
    ]


def _of_squeue(job: Mapping[str, Any]) -> list[str]:
    state = _state(job.get("job_state"))
    start, end, suspended, before = (
        _number(job.get(name)) for name in ("start_time", "end_time", "suspend_time", "pre_sus_time")
    )
    waits, ended = state == "PENDING", state not in ENDED_LATER
    start, end = "" if waits else start, end if ended else ""
    ran = ""
    if ended and start not in ("", "0") and end not in ("", "0"):
        stopped = suspended not in ("", "0")
        ran = str(int(before or 0) + int(end) - int(suspended) if stopped else int(end) - int(start))
    return [
        _job_id(
            job,
            job.get("array_job_id"),
            job.get("array_task_id"),
            job.get("array_task_string"),
            job.get("het_job_id"),
            job.get("het_job_offset"),
        ),
        _number(job.get("job_id")),
        _text(job.get("name")),
        _text(job.get("user_name")),
        _text(job.get("account")),
        _text(job.get("partition")),
        _text(job.get("qos")),
        _text(job.get("cluster")),
        state,
        _number(job.get("submit_time")),
        _number(job.get("eligible_time")),
        start,
        end,
        ran,
        "",
        _number(job.get("time_limit")),
        _number(job.get("node_count")),
        _number(job.get("cpus")),
        _text(job.get("tres_req_str")),
        _text(job.get("tres_alloc_str")),
        _text(job.get("nodes")),
    ]
