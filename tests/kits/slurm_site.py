"""A recorded workload of a real Slurm as a planner has it: a dump of sacct, a cluster file, the folder of the site."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.slurm_recordings import Recording, read

FIRST_S = 1_790_000_040
"""Of offset 0, since 1970: a whole minute."""
HEADER = (
    "JobID|JobName|User|Account|Partition|QOS|State|Submit|Eligible|Start|End|ElapsedRaw|Timelimit|NNodes|NCPUS"
    "|AllocTRES"
)


@dataclass(frozen=True, slots=True)
class SitePaths:
    """What a planner would name on the command line."""

    dump: Path
    cluster: Path
    slurm: Path


def write_site(folder: Path, out: Path) -> SitePaths:
    """The files of one recorded workload, from its first run."""
    recording = read(folder)
    clock = int(recording.setup["runs"][0]["clock_mod_60_s"] or 0)
    out.mkdir(parents=True, exist_ok=True)
    dump = out / "october.txt"
    dump.write_text("\n".join([HEADER, *_rows(recording, FIRST_S + clock)]) + "\n", encoding="utf-8")
    cluster = out / "cluster.yaml"
    pools = [
        f"  - {{name: {kind['gpus'][0]['type']}, nodes: {kind['count']}, gpus_per_node: "
        f"{sum(gpu['count'] for gpu in kind['gpus'])}, gpu_model: {kind['gpus'][0]['type'].upper()}-80GB, "
        f"cpus: {kind['cpus']}}}"
        for kind in recording.setup["nodes"]
    ]
    cluster.write_text("\n".join(["pools:", *pools]) + "\n", encoding="utf-8")
    site = out / "site"
    site.mkdir(exist_ok=True)
    for name in ("slurm.conf", "accounts.txt", "topology.conf"):
        if (folder / name).exists():
            shutil.copy(folder / name, site / name)
    return SitePaths(dump, cluster, site)


def _rows(recording: Recording, first_s: int) -> list[str]:
    rows = []
    for number, (key, job) in enumerate(recording.jobs.items(), 1):
        row = recording.starts[key]
        if not row["start_1"] or not row["end_1"]:
            continue
        start, end = (first_s + int(row[f"slurm_{name}_1"]) for name in ("start", "end"))  # of the last run
        eligible = first_s + int(float(row["eligible_s"] or job.submit_s))
        submit = eligible if int(row["restarts_1"]) else first_s + int(job.submit_s)
        limit = f"{int(job.limit_s) // 60}:00" if job.limit_s < 1e9 else "UNLIMITED"
        gpus = job.gpus * job.nodes
        cells = (number, key, job.user, job.account or "all", job.partition, job.qos or "normal", row["state"], submit)
        rest = (min(eligible, start), start, end, round(recording.durations_s[key]), limit, job.nodes)
        typed = f"gres/gpu:{job.gpu_type}={gpus}," if job.gpu_type else ""
        tres = f"cpu={job.cpus * job.nodes},{typed}gres/gpu={gpus}"
        rows.append("|".join(str(each) for each in (*cells, *rest, job.cpus * job.nodes, tres)))
    return rows
