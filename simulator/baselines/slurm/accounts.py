"""Accounts, users and QOS: sacctmgr commands, or the output of `sacctmgr -P show assoc format=...` and `show qos`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autopilot.core.model.errors import InputError

ROOT = "root"
ASK = (
    "ask sacctmgr --parsable2 show assoc "
    "format=Cluster,Account,User,ParentName,Share,GrpTRES,GrpJobs,MaxTRES,MaxJobs,DefaultQOS"
)
"""Without a format sacctmgr leaves the parents out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an association or QOS; by lower-case TRES (`cpu`, `node`, `gres/gpu`), and by name of the count.

    `group`: of all running jobs together; `user`: of those of each user (QOS); `job`: of each job. `jobs` has the
    counts `grpjobs`, `maxjobs` (running, by user of an association), `maxjobspu`.
    """

    group: Mapping[str, float] = field(default_factory=dict)
    user: Mapping[str, float] = field(default_factory=dict)
    account: Mapping[str, float] = field(default_factory=dict)
    job: Mapping[str, float] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Association:
    """An account, or with `user` a user in an account. `shares` None: those of its parent."""

    account: str
    user: str = ""
    parent: str = ""
    shares: int | None = 1
    limits: Limits = field(default_factory=Limits)
    default_qos: str = ""


@dataclass(frozen=True, slots=True)
class Qos:
    """A QOS. `preempts` are the names of others; `preempt_mode` is "" if the site's applies."""

    name: str
    priority: int = 0
    limits: Limits = field(default_factory=Limits)
    preempts: frozenset[str] = frozenset()
    preempt_mode: str = ""
    grace_s: int = 0


@dataclass(frozen=True, slots=True)
class Accounts:
    """The tree of associations, by (account, user), and the QOS by name."""

    associations: Mapping[tuple[str, str], Association] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)

    def account_of(self, user: str) -> str:
        """The first account of a user: the default one; root if the user has none."""
        return next((account for account, name in self.associations if name == user), ROOT)

    def chain(self, account: str, user: str) -> list[Association]:
        """The association of a user and the accounts above it, lowest first; the root's own is left out."""
        found = [self.associations[account, user]] if (account, user) in self.associations else []
        seen: set[str] = set()
        while account and account != ROOT and account not in seen:
            seen.add(account)
            each = self.associations.get((account, ""))
            if each is None:
                break
            found.append(each)
            account = each.parent
        return found

    def default_qos(self, account: str, user: str) -> str:
        """The QOS of a job without a stated one."""
        return next((each.default_qos for each in self.chain(account, user) if each.default_qos), "normal")


_GROUP, _USER, _ACCOUNT = {"grptres"}, {"maxtresperuser", "maxtrespu"}, {"maxtresperaccount", "maxtrespa"}
_JOB = {"maxtres", "maxtresperjob", "maxtrespj"}
_COUNTS = {
    "grpjobs": "grpjobs", "maxjobs": "maxjobs", "maxjobsperuser": "maxjobspu", "maxjobspu": "maxjobspu",
    "maxjobsperaccount": "maxjobspa", "maxjobspa": "maxjobspa",
}  # fmt: skip


def parse(text: str, where: str = "accounts", qos: Mapping[str, Qos] | None = None) -> Accounts:
    """Read commands (`add account`, `add user`, `add qos`) and tables with a heading, in any order.

    `qos` are QOS known beforehand. Raises `InputError` for an unreadable number.
    """
    associations: dict[tuple[str, str], Association] = {
        (ROOT, ""): Association(ROOT),
        (ROOT, ROOT): Association(ROOT, ROOT, ROOT),
    }
    found = dict(qos or {})
    for kind, record in _records(text, where):
        place = f"{where}: {kind} {record['name']}"
        if kind == "qos":
            found[record["name"]] = _qos(record, place)
            continue
        each = _association(kind, record, place)
        associations[each.account, each.user] = each
    found.setdefault("normal", Qos("normal"))
    return Accounts(associations, found)


def _records(text: str, where: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(account | user | qos, fields by lower-case name) of each command and each row."""
    heading: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if "|" in line:
            cells = line.split("|")
            if not heading or {"account", "name"} & {cell.lower() for cell in cells}:
                heading = [cell.strip().lower() for cell in cells]
                if "account" in heading and not {"parentname", "par name"} & set(heading):
                    raise InputError(f"{where}: the associations do not name the parents of accounts: {ASK}")
                continue
            row = dict(zip(heading, cells, strict=False))
            row = {key: value for key, value in row.items() if key and value}
            if "account" in row or "user" in row:
                kind = "user" if row.get("user") else "account"
                row["parent"] = row.get("parentname", row.get("par name", ""))
                yield kind, {**row, "name": row["user"] if kind == "user" else row["account"]}
            elif "name" in row:
                yield "qos", row
            continue
        heading = []
        words = [word for word in shlex.split(line) if word.lower() not in {"sacctmgr", "-i", "set"}]
        if len(words) >= 3 and words[0].lower() in {"add", "create", "modify"}:
            fields = {key.lower(): value for key, _, value in (word.partition("=") for word in words[3:])}
            for name in words[2].split(","):
                yield words[1].lower(), {**fields, "name": name}


def _association(kind: str, record: Mapping[str, str], where: str) -> Association:
    stated = record.get("fairshare", record.get("share", "1")).lower()
    shares = None if stated == "parent" else int(_amount(stated, where))
    user = record["name"] if kind == "user" else ""
    account = record.get("account", ROOT) if kind == "user" else record["name"]
    return Association(
        account,
        user,
        parent=account if user else (record.get("parent", "") or (ROOT if account != ROOT else "")),
        shares=shares,
        limits=_limits(record, where),
        default_qos=record.get("defaultqos", record.get("def qos", "")),
    )


def _qos(record: Mapping[str, str], where: str) -> Qos:
    mode = record.get("preemptmode", "").lower()
    return Qos(
        record["name"],
        priority=int(_amount(record.get("priority", "0"), where)),
        limits=_limits(record, where),
        preempts=frozenset(filter(None, record.get("preempt", "").split(","))),
        preempt_mode="" if mode == "cluster" else mode,
        grace_s=_clock(record.get("gracetime", "0"), where),
    )


def _limits(record: Mapping[str, str], where: str) -> Limits:
    def tres(names: set[str]) -> dict[str, float]:
        return next((_tres(record[each], where) for each in names if each in record), {})

    counts = {
        ours: int(_amount(record[name], where)) for name, ours in _COUNTS.items() if record.get(name, "-1") != "-1"
    }
    return Limits(group=tres(_GROUP), user=tres(_USER), account=tres(_ACCOUNT), job=tres(_JOB), jobs=counts)


def _tres(text: str, where: str) -> dict[str, float]:
    pairs = (part.rpartition("=")[::2] for part in text.split(",") if part)
    return {name.lower(): _amount(value, where) for name, value in pairs if value != "-1"}


def _amount(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: {text!r} is no number") from None


def _clock(text: str, where: str) -> int:
    fields = [int(_amount(each, where)) for each in text.split(":")]
    hours, minutes, rest = [0, 0, *fields][-3:]
    return hours * 3600 + minutes * 60 + rest
