"""State of the service on disk: one folder, and in it one folder for each run of a simulated cluster."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError
from autopilot.files import state_folder, unwritten

KEPT_RUNS = 3
"""Runs of simulated clusters with kept records."""


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of the service. `run`: the files of one cluster."""

    folder: Path
    run: Path

    @property
    def lock(self) -> Path:
        """The lock of the leader, with the last fencing token."""
        return self.run / "leader.lock"

    @property
    def memory(self) -> Path:
        """The memory of the controller."""
        return self.run / "memory.json"

    @property
    def journal(self) -> Path:
        """The journal."""
        return self.run / "autopilot.journal"

    @property
    def inbox(self) -> Path:
        """The commands of people."""
        return self.run / "inbox.db"

    @property
    def alerts(self) -> Path:
        """The delivered alerts."""
        return self.run / "alerts.db"

    @property
    def history(self) -> Path:
        """The last day, for the page."""
        return self.run / "history.json"

    @property
    def registry(self) -> Path:
        """The models."""
        return self.run / "models"

    @property
    def audit(self) -> Path:
        """The audit log; its key lies beside it."""
        return self.folder / "audit"

    @property
    def kill(self) -> Path:
        """The kill switch."""
        return self.folder / "kill"

    @property
    def last_policy(self) -> Path:
        """The last valid policy of a ConfigMap."""
        return self.folder / "policy.yaml"

    @property
    def token(self) -> Path:
        """The admin token made by the service."""
        return self.folder / "admin.token"

    @property
    def service(self) -> Path:
        """Address of the running service, for commands on this machine."""
        return self.folder / "service.json"

    @property
    def cluster(self) -> Path:
        """Address of the simulated cluster of the last run."""
        return self.folder / "cluster.json"


def service_folder(state: Path | None) -> Path:
    """The folder of the settings, or the default one."""
    return state if state is not None else state_folder() / "service"


def places(state: Path | None, run: str = "") -> Places:
    """Create the folders, readable by their owner only. Raises `InputError` if that is not possible."""
    folder = service_folder(state)
    own = folder / "runs" / run if run else folder
    try:
        for each in (folder, own):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        if run:
            _drop_old(folder / "runs", own)
    except OSError as error:
        raise InputError(
            f"{folder}: the state of the service cannot be kept here: {error.strerror}; set `state` to a folder with "
            "write access"
        ) from error
    return Places(folder, own)


def _drop_old(runs: Path, own: Path) -> None:
    """Remove the oldest records of simulated clusters."""
    others = sorted((each for each in runs.iterdir() if each != own), key=lambda each: each.stat().st_mtime)
    for each in others[: max(len(others) + 1 - KEPT_RUNS, 0)]:
        shutil.rmtree(each, ignore_errors=True)


def own_token(path: Path) -> str:
    """The admin token of the service, created on first use."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise unwritten(path, error) from error
    token = secrets.token_urlsafe(32)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(token + "\n")
    except OSError as error:
        path.unlink()  # an empty file would be taken for a token
        raise unwritten(path, error) from error
    return token


def write_note(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content) + "\n", "utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritten(path, error) from error


def read_note(path: Path) -> dict[str, Any]:
    """A file of `write_note`; {} for a missing one, or any other file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
