"""Advance reservations: nodes kept for some users or accounts from one time to another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from autopilot.core.model.errors import InputError
from simulator.baselines.slurm.hostlist import expand
from simulator.baselines.slurm.model import Job, node_set

_FIELD = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)")
_OF_SACCTMGR = {"name": "reservationname", "timestart": "starttime", "timeend": "endtime", "nodename": "nodes"}
_ASK = "write the output of SLURM_TIME_FORMAT=%s scontrol show reservation"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes (a bit set) from `start_s` to `end_s`; known to the scheduler from `since_s` on.

    `unnamed`: its users need not name it, as in an accounting (it does not record the name).
    """

    name: str
    start_s: float
    end_s: float
    nodes: int
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    since_s: float = float("-inf")
    unnamed: bool = False

    def admits(self, job: Job) -> bool:
        """True if the job may use it."""
        return job.user in self.users or job.account in self.accounts


def open_to(job: Job, reservations: Iterable[Reservation], start_s: float, now_s: float) -> int | None:
    """The nodes a job may use if it starts then and takes its whole limit; None if it waits for its own reservation to
    begin. A bit set, -1 for all.
    """
    known = [each for each in reservations if each.since_s <= now_s < each.end_s]
    if job.reservation:
        own = next((each for each in known if each.name == job.reservation and each.admits(job)), None)
        return own.nodes if own is not None and own.start_s <= start_s < own.end_s else None
    allowed = -1
    for each in known:
        if start_s <= each.end_s and start_s + job.limit_s > each.start_s and not (each.unnamed and each.admits(job)):
            allowed &= ~each.nodes
    return allowed


def parse(
    text: str, names: Sequence[str], start_s: float | None, timezone: str = "", where: str = "reservations.txt"
) -> list[Reservation]:
    """Read the output of `scontrol show reservation` or `sacctmgr -P show reservation`, for nodes of these names.

    `start_s`: seconds since 1970 of time 0, None if the jobs have no dates. `timezone`: of dates without one.
    Raises `InputError` for a line outside any reservation, and for unknown nodes and unreadable times.
    """
    found = []
    for record in _records(text, where):
        place = f"{where}: reservation {record.get('reservationname', '')}"
        begin_s, end_s = (_epoch_s(record.get(key, ""), key, timezone, place) for key in ("starttime", "endtime"))
        flags = set(record.get("flags", "").upper().split(","))
        nodes = _nodes(record.get("nodes", ""), names, place, every="ALL_NODES" in flags)
        if not nodes:  # of licences
            continue
        if start_s is None:
            raise InputError(f"{place} has dates, and the jobs have none; remove {where} or use jobs with dates")
        users, accounts = (frozenset(_listed(record.get(key, ""))) for key in ("users", "accounts"))
        found.append(
            Reservation(
                record["reservationname"],
                begin_s - start_s,
                end_s - start_s,
                nodes,
                users,
                accounts,
                unnamed="MAINT" not in flags,
            )
        )
    return found


def _records(text: str, where: str) -> list[dict[str, str]]:
    """The fields of each reservation, by lower-case name."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and "|" in lines[0][1]:
        heads = [_OF_SACCTMGR.get(head.lower(), head.lower()) for head in lines[0][1].split("|")]
        return [dict(zip(heads, line.split("|"), strict=False)) for _, line in lines[1:]]
    records: list[dict[str, str]] = []
    for number, line in lines:
        if line.startswith("No reservations in the system"):
            continue
        begins, fields = line.lower().startswith("reservationname="), _FIELD.findall(line)
        if not fields or not (begins or records) or not line.startswith(fields[0][0]):
            raise InputError(f"{where}: line {number}, {line[:60]!r}, is no part of a reservation; {_ASK}")
        if begins:
            records.append({})
        records[-1].update({key.lower(): value for key, value in fields})
    return records


def _epoch_s(text: str, key: str, timezone: str, place: str) -> float:
    if text.isdigit():
        return float(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{place}: {key} {text!r} is no time; {_ASK}") from None
    return (time if time.tzinfo else time.replace(tzinfo=ZoneInfo(timezone or "UTC"))).timestamp()


def _nodes(hosts: str, names: Sequence[str], place: str, *, every: bool) -> int:
    """The nodes as a bit set. Raises `InputError` for a name outside `names`."""
    if every or hosts.upper() == "ALL":
        return (1 << len(names)) - 1
    known = {name: k for k, name in enumerate(names)}
    wanted = expand("" if hosts == "(null)" else hosts)
    for name in wanted:
        if name not in known:
            few = ", ".join((*names[:2], *(["..."] if len(names) > 2 else [])))
            raise InputError(f"{place}: no node is named {name!r}; write the nodes as the cluster names them ({few})")
    return node_set(known[name] for name in wanted)


def _listed(text: str) -> list[str]:
    """Names of a list; excluded ones (-NAME) are left out, as is "(null)"."""
    return [name for name in text.split(",") if name and name != "(null)" and not name.startswith("-")]
