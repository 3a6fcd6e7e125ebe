"""The fields read from `sacct`, under one name each, and the fields for a site to print."""

from __future__ import annotations

import re
from collections.abc import Sequence

ASK = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --duplicates --allocations --parsable2 --starttime=... --endtime=... "
    "--format=JobID,JobName,User,Account,Partition,QOS,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,"
    "NNodes,NCPUS,ReqTRES,AllocTRES"
)
"""The command that gives all that is used."""

TIMES = ("submit", "eligible", "start", "end")
CLOCKS = ("elapsed", "elapsedraw", "suspended", "timelimit", "timelimitraw")
COUNTS = ("nnodes", "allocnodes", "reqnodes", "ncpus", "alloccpus", "reqcpus", "gpus")
LISTS = ("alloctres", "reqtres", "allocgres", "reqgres")
TEXTS = ("user", "account", "partition", "qos", "cluster", "nodelist")

ALIASES = {
    "idjob": "jobidraw",
    "username": "user",
    "name": "jobname",
    "jobstate": "state",
    "submittime": "submit",
    "submission": "submit",
    "timesubmit": "submit",
    "eligibletime": "eligible",
    "timeeligible": "eligible",
    "starttime": "start",
    "timestart": "start",
    "endtime": "end",
    "timeend": "end",
    "timesuspended": "suspended",
    "numnodes": "nnodes",
    "nodecount": "nnodes",
    "numcpus": "ncpus",
    "tresalloc": "alloctres",
    "tresreq": "reqtres",
    "gres": "reqgres",
    "allocgpus": "gpus",
    "reqgpus": "gpus",
    "ngpus": "gpus",
    "numgpus": "gpus",
    "gpucount": "gpus",
}
"""Other names for a field, in small letters without spaces, dashes and underscores."""

KNOWN = frozenset(("jobid", "jobidraw", "jobname", "state", *TIMES, *CLOCKS, *COUNTS, *LISTS, *TEXTS))
OURS = {
    "job_id": "jobid",
    "tenant": "account",
    "user": "user",
    "name": "jobname",
    "submit_s": "submit",
    "start_s": "start",
    "end_s": "end",
    "duration_s": "elapsed",
    "gpus": "alloctres",
    "nodes": "nnodes",
    "status": "state",
    "limit_s": "timelimit",
    "cpus": "ncpus",
}
"""The field behind each column of ours that `--columns` may map."""


def field_of(name: str) -> str:
    """The field named by a header, in any case; other names in small letters, without spaces and underscores."""
    folded = re.sub(r"[\s_\-]+", "", name).casefold()
    return ALIASES.get(folded, folded)


def is_accounting(header: Sequence[str]) -> bool:
    """True for columns of an accounting of Slurm: job numbers, states, times and GPUs."""
    there = {field_of(name) for name in header}
    return bool(
        there & {"jobid", "jobidraw"}
        and "state" in there
        and there & {"submit", "start", "end", "elapsed", "elapsedraw"}
        and there & {"gpus", *LISTS}
    )
