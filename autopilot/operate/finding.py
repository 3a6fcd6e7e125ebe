"""The service or run behind a command, by one rule for all commands.

An option names it (`--server`, `--state`, `--config`), else the setting `state` (`GPU_AUTOPILOT_STATE`), else it is the
running service of this machine. A reading command takes the last run if none of these is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopilot.app.commands.run_commands import err, last_journal
from autopilot.core.model.errors import InputError
from autopilot.operate.client import Api
from autopilot.operate.remote import fetched
from autopilot.operate.where import Where
from autopilot.service.settings_file import load_settings
from autopilot.service.state_folder import Places, read_note, service_folder

NOWHERE = Where()


@dataclass(frozen=True, slots=True)
class Run:
    """The subject of a command's answer: a journal on this machine, or else a service over its API."""

    words: str
    journal: Path | None = None
    api: Api | None = None

    @property
    def service(self) -> Api:
        """The service to ask if the journal is not here."""
        if self.api is None:
            raise InputError(f"{self.words}: no service answers about it")
        return self.api


def find_api(where: Where) -> Api:
    """The service of a command. Raises `InputError` if there is none, or no token for it."""
    note: dict[str, Any] = {}
    if where.server is None or where.token_file is None:
        folder = _folder(where)
        note = read_note(Places(folder, folder).service)
        if where.server is None and not note:
            raise InputError(
                f"{folder}: no service runs with this state folder; start one with `autopilot run`, or name another "
                "with --state or --server"
            )
    url = where.server or str(note.get("url"))
    file = where.token_file or (Path(note["token_file"]) if note.get("token_file") else None)
    if not url.startswith(("http://", "https://")):
        raise InputError(f"--server: {url!r} is no address; write for example http://127.0.0.1:9470")
    if file is None:
        raise InputError(f"--token-file: {url} wants your token; give the file that holds it")
    try:
        return Api(url.rstrip("/"), file.read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the token cannot be read: {error}; give another file with --token-file") from error


@contextmanager
def asked_run(where: Where, journal: Path | None = None) -> Iterator[Run]:
    """The run to read: a given `journal` first. Prints the chosen one behind the answer.

    Raises `InputError` if there is none.
    """
    if journal is not None:
        if where.names_one:
            raise InputError("--journal: it names the run; leave out --server, --state and --config")
        if not journal.exists():
            raise InputError(f"{journal}: no such journal; `autopilot simulate` and `autopilot demo` print their path")
        yield Run(str(journal), journal)
        return
    run = _asked(where)
    with _told(run.words):
        yield run


@contextmanager
def asked_journal(journal: Path | None, where: Where = NOWHERE) -> Iterator[Path]:
    """The journal of the run to read, as `asked_run`. Raises `InputError` if it is not on this machine."""
    with asked_run(where, journal) as run:
        if run.journal is None:
            raise InputError(f"{run.words}: its journal is not on this machine; name one with --journal")
        yield run.journal


@contextmanager
def asked_audit(where: Where, folder: Path | None) -> Iterator[Path]:
    """The folder of an audit log: `folder`, else that of the service. Prints its owner behind the answer."""
    if folder is not None:
        if where.names_one:
            raise InputError("FOLDER: it names the audit log; leave out --server, --state and --config")
        yield folder
        return
    if where.server is not None:
        api = find_api(where)
        with _told(f"the service at {api.url}"), fetched(api, "audit") as copy:
            yield copy
        return
    state = _folder(where)
    with _told(f"the service with the state folder {state}"):
        yield Places(state, state).audit


@contextmanager
def _told(words: str) -> Iterator[None]:
    """Prints `words` behind an answer. A refusal is one message and names the file itself."""
    refused = False
    try:
        yield
    except InputError:
        refused = True
        raise
    finally:
        if not refused:
            err.print(f"about {words}")


def journal_of(where: Where) -> str:
    """The journal of the running service of this machine; "" for a service elsewhere."""
    if where.server is not None:
        return ""
    folder = _folder(where)
    return str(read_note(Places(folder, folder).service).get("journal") or "")


def _asked(where: Where) -> Run:
    if where.server is not None:
        api = find_api(where)
        return Run(f"the service at {api.url}", api=api)
    settings = _settings(where)
    folder = service_folder(settings.state)
    note = read_note(Places(folder, folder).service)
    if _runs(note):
        words, path = f"the service at {note.get('url')}, state folder {folder}", Path(str(note.get("journal")))
        return Run(words, path) if os.access(path, os.R_OK) else Run(words, api=find_api(where))
    kept = _newest((folder / "autopilot.journal", *folder.glob("runs/*/autopilot.journal")))
    if where.names_one or settings.state is not None:
        if kept is None:
            raise InputError(
                f"{folder}: no service runs with this state folder, and it holds no journal; start one with "
                "`autopilot run`, or name another with --state or --server, or a journal with --journal"
            )
        return Run(f"the last run of the service with the state folder {folder}, which has ended: {kept}", kept)
    last = _newest((last_journal(), *([kept] if kept else [])))
    if last is None:
        raise InputError(
            f"{last_journal()}: no such journal. Run `autopilot demo` or `autopilot simulate` first, or name a journal "
            "with --journal, or a service with --state or --server"
        )
    return Run(f"the last run, {_what(last)}: {last.resolve()}", last)


def _settings(where: Where) -> Any:
    return load_settings(where.config, {"state": str(where.state)} if where.state is not None else {})


def _folder(where: Where) -> Path:
    return service_folder(_settings(where).state)


def _runs(note: dict[str, Any]) -> bool:
    """True if the process of the note is alive."""
    try:
        os.kill(int(note["pid"]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _newest(paths: Iterable[Path]) -> Path | None:
    """The last written file; SQLite writes into the file with `-wal` first."""
    written = [
        (max(each.stat().st_mtime for each in (path, path.with_name(f"{path.name}-wal")) if each.exists()), path)
        for path in paths
        if path.exists()
    ]
    return max(written)[1] if written else None


def _what(journal: Path) -> str:
    """Policy and input of a run, as its journal describes them."""
    from autopilot.records.journal import JournalReader

    with JournalReader(journal) as reader:
        about = reader.runs[-1].description if reader.runs else {}
    played = about.get("scenario") or Path(str(about.get("jobs") or about.get("requests") or "")).name
    policy = about.get("policy")
    return f"{policy or 'unknown policy'} on {played or 'a cluster'}"
