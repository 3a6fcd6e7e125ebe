"""Limits of QOS and associations on running jobs. A job over a limit waits, and blocks nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from simulator.baselines.slurm.accounts import Accounts, Limits, Qos
from simulator.baselines.slurm.model import Job

Key = tuple[str, ...]


def tres_of(job: Job) -> dict[str, float]:
    """The total request of a job: CPUs, nodes, GPUs, and GPUs of its type."""
    found: dict[str, float] = {"cpu": job.nodes * job.cpus, "node": job.nodes, "gres/gpu": job.nodes * job.gpus}
    if job.gpu_type:
        found[f"gres/gpu:{job.gpu_type}"] = job.nodes * job.gpus
    return found


class Use:
    """Resources held by running jobs, by QOS, user and association."""

    def __init__(self, accounts: Accounts, running: Iterable[Job] = ()) -> None:
        self._accounts = accounts
        self._held: Counter[Key] = Counter()
        self._jobs: Counter[Key] = Counter()
        for job in running:
            self.add(job)

    def _keys(self, job: Job) -> list[Key]:
        account, qos = job.account, job.qos
        keys: list[Key] = [("qos", qos), ("qos", qos, "user", job.user), ("qos", qos, "account", account)]
        keys += [("assoc", each.account, each.user) for each in self._accounts.chain(account, job.user)]
        return keys

    def add(self, job: Job) -> None:
        """A job starts."""
        tres = tres_of(job)
        for key in self._keys(job):
            self._jobs[key] += 1
            for name, amount in tres.items():
                self._held[*key, name] += int(amount)

    def refusal(self, job: Job) -> str:
        """The limit against a start of the job, in the words of squeue; "" if it may start."""
        tres = tres_of(job)
        qos = self._accounts.qos.get(job.qos, Qos(job.qos))
        limits, at = qos.limits, ("qos", job.qos)
        checks = (
            (limits.group, at, "QOSGrp"),
            (limits.user, (*at, "user", job.user), "QOSMax{}PerUser"),
            (limits.account, (*at, "account", job.account), "QOSMax{}PerAccount"),
        )
        for most, key, word in checks:
            over = self._over(most, key, tres)
            if over:
                return word.format(over) if "{}" in word else word + over
        if any(tres.get(name, 0) > most for name, most in limits.job.items()):
            return "QOSMaxTRESPerJob"
        counted = (
            ("grpjobs", at, "QOSGrpJobsLimit"),
            ("maxjobspu", (*at, "user", job.user), "QOSMaxJobsPerUserLimit"),
            ("maxjobspa", (*at, "account", job.account), "QOSMaxJobsPerAccountLimit"),
        )
        for name, key, word in counted:
            if name in limits.jobs and self._jobs[key] >= limits.jobs[name]:
                return word
        return self._of_associations(job, tres, limits)

    def _of_associations(self, job: Job, tres: Mapping[str, float], qos: Limits) -> str:
        """Limits of the user's association and the accounts above it. A limit of the QOS as well does not count."""
        for each in self._accounts.chain(job.account, job.user):
            key = ("assoc", each.account, each.user)
            group = {name: most for name, most in each.limits.group.items() if name not in qos.group}
            over = self._over(group, key, tres)
            if over:
                return f"AssocGrp{over}"
            if any(tres.get(name, 0) > most for name, most in each.limits.job.items() if name not in qos.job):
                return "AssocMaxTRESPerJob"
            jobs = each.limits.jobs
            if "grpjobs" in jobs and "grpjobs" not in qos.jobs and self._jobs[key] >= jobs["grpjobs"]:
                return "AssocGrpJobsLimit"
            mine = ("assoc", job.account, job.user)
            if "maxjobs" in jobs and "maxjobspu" not in qos.jobs and self._jobs[mine] >= jobs["maxjobs"]:
                return "AssocMaxJobsLimit"
        return ""

    def _over(self, limits: Mapping[str, float], key: Key, tres: Mapping[str, float]) -> str:
        """The kind of the first limit exceeded with the job; "" for none."""
        for name, most in limits.items():
            if tres.get(name, 0) and self._held[*key, name] + tres[name] > most:
                return {"cpu": "Cpu", "node": "Node"}.get(name, "GRES")
        return ""
