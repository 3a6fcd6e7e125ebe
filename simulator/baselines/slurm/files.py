"""A site from its files: settings, accounts, switches and reservations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autopilot.core.model.errors import InputError
from simulator.baselines.slurm import accounts, config, reservations, topology
from simulator.baselines.slurm.model import Node
from simulator.baselines.slurm.site import Site

SETTINGS = ("slurm.conf", "config.txt")
"""Settings as in slurm.conf, or what `scontrol show config; scontrol show partition` printed."""
ACCOUNTS = ("accounts.txt",)
"""What `sacctmgr -P show assoc format=...; sacctmgr -P show qos` printed, or commands for sacctmgr."""


SWITCHES = ("topology.conf",)
RESERVATIONS = ("reservations.txt",)
"""What `scontrol show reservation`, or for the past `sacctmgr -P show reservation`, printed."""


def _text(folder: Path, names: tuple[str, ...]) -> str:
    """The first of these files; "" without one. Raises `InputError` if it is unreadable."""
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def site_bytes(folder: Path) -> bytes:
    """The content of a site's files, to tell two sites apart."""
    names = (*SETTINGS, *ACCOUNTS, *SWITCHES, *RESERVATIONS)
    return b"\0".join(name.encode() + (folder / name).read_bytes() for name in names if (folder / name).is_file())


def read_site(folder: Path, nodes: tuple[Node, ...], start_s: float | None = None, timezone: str = "") -> Site:
    """The site for these nodes. A partition naming none of them has them all; switches naming none are left out.

    `start_s`: seconds since 1970 of time 0, None if the jobs have no dates; `timezone`: of dates without one (UTC).

    Raises `InputError` for a folder without settings, and for unreadable text in it.
    """
    text = _text(folder, SETTINGS)
    if not text:
        raise InputError(f"{folder}: has neither {' nor '.join(SETTINGS)}; write the output of scontrol there")
    site = Site(nodes, config.parse(text, str(folder)), accounts.parse(_text(folder, ACCOUNTS), str(folder)))
    partitions = {
        name: each if site.partition_nodes(name) or not each.up else replace(each, nodes="ALL")
        for name, each in site.config.partitions.items()
    }
    switches = _text(folder, SWITCHES)
    tree = topology.parse(switches, [node.name for node in nodes], str(folder)) if switches else None
    settings = replace(site.config, partitions=partitions)
    known = settings.topology and tree is not None and any(tree.leaves)
    held = reservations.parse(
        _text(folder, RESERVATIONS), [node.name for node in nodes], start_s, timezone, str(folder / RESERVATIONS[0])
    )
    return Site(nodes, settings, site.accounts, tree if known else None, held)
