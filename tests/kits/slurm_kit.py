"""A real Slurm on one machine: munge, MariaDB, slurmdbd, slurmctld, four slurmd, in a folder and on ports of its own.

`make slurm-services` installs the Debian packages; no service of the system is used or changed. The 8 GPUs of each
node are empty files. Jobs are submitted as accounts that every Debian has (`games`, `mail`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kits.processes import descendants, gone
from tests.kits.prometheus_kit import until

PROGRAMS = (
    "munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "scontrol", "sacctmgr", "sbatch",
    "srun", "scancel", "squeue", "sacct",
)  # fmt: skip
SHARDS_PER_GPU = 4
NODES = {"n1": "a100:8", "n2": "a100:8", "n3": "h100:8", "n4": "a100:2"}
"""The whole GPUs of each node. n3 also offers its GPUs as shards, and n4 has 6 slices more."""
SLICES = {"a100_1g.10gb": 4, "a100_3g.40gb": 2}
PARTITIONS, IDLE = "gpu,mig", ["idle"] * len(NODES)
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): steps leave their slurmd, and become children of this process."""

ACCOUNTS = """add account science parent=root
add account physics parent=science fairshare=3
add account industry parent=root
add qos low
add qos high priority=100 preempt=low
add user games account=physics fairshare=2 qos=normal,high,low defaultqos=normal
add user mail account=industry qos=normal defaultqos=normal
"""
ACCOUNT_OF = {"games": "physics", "mail": "industry"}
SLURM_CONF = """ClusterName=live
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ctld}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/ctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/%n.log
Prolog={folder}/prolog
Epilog={folder}/epilog
PrologFlags=Alloc
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/run/munge.socket
AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:h100,{slices}gres/shard
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/none
KillWait=2
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_resolution=1,sched_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
PreemptType=preempt/qos
PreemptMode=REQUEUE
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightQOS=10000
{nodes}
PartitionName=gpu Nodes=n[1-3] Default=YES DefaultTime=10:00 MaxTime=INFINITE State=UP
PartitionName=wide Nodes=n[1-2] MaxTime=1-00:00:00 PriorityTier=5 State=UP
PartitionName=mig Nodes=n4 MaxTime=INFINITE State=UP
"""
DBD_CONF = """AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
DbdHost=localhost
DbdPort={dbd}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={db}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
LogFile={folder}/log/dbd.log
PidFile={folder}/run/dbd.pid
"""
DATABASE = """create database slurm_acct;
create user slurm@localhost identified by '{password}';
grant all on slurm_acct.* to slurm@localhost;
"""
HOOK = """#!/bin/bash
exec >> {folder}/said/nodes.$SLURMD_NODENAME
echo "{what} $(date +%s.%N) $SLURM_JOB_ID $SLURMD_NODENAME ${{SLURM_JOB_GPUS:-}}"
"""


def missing() -> str:
    """Why no Slurm can be started here; empty where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if absent:
        return f"needs {', '.join(absent)}: install Slurm with `make slurm-services` (Debian, as root)"
    return "" if os.geteuid() == 0 else "slurmd starts jobs of other accounts: run as root"


def search_path() -> str:
    """PATH with the folders of system programs."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(slots=True)
class Cluster:
    """A Slurm that runs. `folder` holds its files; `said` in it is where jobs, prolog and epilog write."""

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *command: str) -> str:
        """What a command prints. Fails with its message where it fails."""
        done = self.attempt(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def attempt(self, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command that may fail, in the folder of the jobs, with `text` as its input."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder / "out",
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def daemon(self, *command: str) -> None:
        """Start a daemon that stays in the foreground; its output goes to the folder's logs."""
        with (self.folder / "log" / f"{Path(command[0]).name}{len(self.daemons)}.out").open("wb") as log:
            self.daemons.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
                )
            )

    def submit(self, script: str, *options: str, user: str = "games") -> str:
        """The number of a batch job."""
        where = f"--output={self.folder}/out/%A-%a"
        done = self.attempt("sbatch", "--parsable", f"--uid={user}", where, *options, text=script)
        assert done.returncode == 0, f"sbatch {' '.join(options)}: {done.stderr}"
        return done.stdout.strip().partition(";")[0]

    def states(self) -> dict[str, str]:
        """State of each job (of an array: each task) that has not ended, by id."""
        words = self.run("squeue", "--noheader", "--array", "--format=%i %T").split()
        return dict(zip(words[::2], words[1::2], strict=True))


@contextlib.contextmanager
def slurm(logs: Path) -> Iterator[Cluster]:
    """A Slurm whose four nodes are idle. When the block is left, everything of it has ended; its logs are in `logs`."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-live-"))  # short, because of sockets
    folder.chmod(0o755)  # jobs are of other accounts
    before = descendants()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(SUBREAPER, 1, 0, 0, 0) == 0, "steps would outlive the test"
    cluster = Cluster(folder, _environment(folder))
    try:
        _start(cluster)
        yield cluster
    except BaseException as error:
        error.add_note(f"logs of Slurm: {logs}")
        raise
    finally:
        _end(cluster.daemons, before)
        prctl(SUBREAPER, 0, 0, 0, 0)
        shutil.copytree(folder / "log", logs)
        shutil.rmtree(folder)


def _environment(folder: Path) -> dict[str, str]:
    """That of this process without settings for Slurm's commands, which take the folder's."""
    theirs = ("SLURM", "SBATCH", "SACCT", "SQUEUE", "SINFO", "SCONTROL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    own = {"PATH": search_path(), "SLURM_CONF": f"{folder}/etc/slurm.conf", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    return {**kept, **own}


def _end(daemons: Sequence[subprocess.Popen[bytes]], before: set[int]) -> None:
    """End what this process has started since `before`: politely, then by force."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants() - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        with contextlib.suppress(AssertionError):
            until(lambda: all(gone(pid) for pid in descendants() - before), "all of Slurm has ended", 5.0)
    for daemon in daemons:
        daemon.wait()
    for pid in descendants() - before:
        os.waitpid(pid, 0)


def _write_files(folder: Path, ports: Sequence[int]) -> str:
    """The folders and settings; returns the SQL that makes the database."""
    for name in ("etc", "run", "state", "log", "spool", "dev", "db"):
        (folder / name).mkdir()
    for name in ("said", "out"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    for name in NODES:
        (folder / "spool" / name).mkdir()
    for number in range(8):
        (folder / "dev" / f"nv{number}").symlink_to("/dev/null")  # slurmd wants a device
    ctld, dbd, db, *nodes = ports
    words = {"folder": folder, "host": socket.gethostname().split(".")[0], "ctld": ctld, "dbd": dbd, "db": db}
    words["password"] = secrets.token_hex(16)
    lines, gres = [], []
    at = f"NodeAddr=127.0.0.1 NodeHostname={words['host']} Sockets=2 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=1000"
    for (name, whole), port in zip(NODES.items(), nodes, strict=True):
        model, _, count = whole.partition(":")
        offers = [f"gpu:{whole}"]
        first = int(count)
        gres.append(f"NodeName={name} Name=gpu Type={model} File={folder}/dev/nv[0-{first - 1}]")
        if name == "n3":
            offers.append(f"shard:{SHARDS_PER_GPU * first}")
            gres.append(f"NodeName={name} Name=shard Count={SHARDS_PER_GPU * first}")
        for kind, many in SLICES.items() if name == "n4" else ():
            offers.append(f"gpu:{kind}:{many}")
            gres.append(f"NodeName={name} Name=gpu Type={kind} File={folder}/dev/nv[{first}-{first + many - 1}]")
            first += many
        lines.append(f"NodeName={name} {at} Port={port} Gres={','.join(offers)} State=UNKNOWN")
    slices = "".join(f"gres/gpu:{kind}," for kind in SLICES)
    (folder / "etc" / "slurm.conf").write_text(SLURM_CONF.format(nodes="\n".join(lines), slices=slices, **words))
    (folder / "etc" / "gres.conf").write_text("\n".join(gres) + "\n")
    (folder / "etc" / "slurmdbd.conf").write_text(DBD_CONF.format(**words))
    (folder / "etc" / "slurmdbd.conf").chmod(0o600)
    (folder / "etc" / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "etc" / "munge.key").chmod(0o600)
    for what in ("prolog", "epilog"):
        (folder / what).write_text(HOOK.format(what=what, folder=folder))
        (folder / what).chmod(0o755)
    return DATABASE.format(**words)


def _start(cluster: Cluster) -> None:
    folder = cluster.folder
    ports = free_ports(3 + len(NODES))
    sql = folder / "etc" / "init.sql"
    sql.write_text(_write_files(folder, ports))
    cluster.run("mariadb-install-db", "--no-defaults", f"--datadir={folder}/db", "--user=root", "--skip-test-db")
    cluster.daemon(
        "mariadbd",
        "--no-defaults",
        f"--datadir={folder}/db",
        "--user=root",
        f"--socket={folder}/run/db.socket",
        "--bind-address=127.0.0.1",
        f"--port={ports[2]}",
        f"--pid-file={folder}/run/db.pid",
        f"--init-file={sql}",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-lock-wait-timeout=900",
    )
    run = f"{folder}/run/munge"
    cluster.daemon(
        "munged",
        "--foreground",
        "--force",
        f"--key-file={folder}/etc/munge.key",
        f"--socket={run}.socket",
        f"--pid-file={run}.pid",
        f"--log-file={folder}/log/munged.log",
        f"--seed-file={run}.seed",
    )
    until(lambda: _listens(ports[2]) and Path(f"{run}.socket").exists(), "MariaDB and munge answer", 60.0)
    cluster.daemon("slurmdbd", "-D")
    until(lambda: _listens(ports[1]), "slurmdbd answers", 60.0)
    cluster.run("sacctmgr", "-i", "add", "cluster", "live")
    for line in ACCOUNTS.splitlines():
        cluster.run("sacctmgr", "-i", *line.split())
    cluster.daemon("slurmctld", "-D")
    until(lambda: _listens(ports[0]), "slurmctld answers", 60.0)
    for name in NODES:
        cluster.daemon("slurmd", "-D", "-N", name)
    until(
        lambda: cluster.attempt("sinfo", "-hN", "-o", "%t", "-p", PARTITIONS).stdout.split() == IDLE, "nodes idle", 60.0
    )


def _listens(port: int) -> bool:
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0
