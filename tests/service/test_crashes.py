"""A controller may be killed anywhere in a tick: no effect happens twice, and nothing that happened is missed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from autopilot.core.model.records import Command, CommandKind
from autopilot.core.model.snapshot import State
from autopilot.records.journal.reader import JournalReader
from autopilot.records.memory import FileMemoryStore
from autopilot.records.replay import replay
from autopilot.service.inbox import SqliteInbox
from autopilot.service.state_folder import read_note
from tests.service.crash_kit import BOUNDARIES, control, ended_by, facts_of, forked, serve
from tests.service.kit import poll

ROUNDS = 2
ENDS, MOST_AT_END = 20, 5
"""Work whose end must be seen, and the most controllers that run for it at the end."""


def test_a_killed_controller_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed at every boundary, several times, while the cluster lives: the next one goes on with what is on disk."""
    cluster = forked(partial(serve, tmp_path, "quickstart", 240.0))
    given = 0
    try:
        url = str(poll(lambda: read_note(tmp_path / "cluster.json"), "the cluster answers")["url"])
        for turn in range(ROUNDS):
            for place, boundary in enumerate(BOUNDARIES):
                hit = 1 + (turn + place) % 3
                assert ended_by(forked(partial(control, tmp_path, url, boundary, hit, 400))) == signal.SIGKILL
                run = next((tmp_path / "state" / "runs").iterdir())
                inbox = SqliteInbox(run / "inbox.db", lambda: "")
                for kind in (CommandKind.PAUSE, CommandKind.RESUME):
                    assert inbox.receive(Command(kind, "test", 0.0)).sequence == given
                    given += 1
                inbox.close()
        for _ in range(MOST_AT_END):  # how much work ends by then depends on the machine
            assert ended_by(forked(partial(control, tmp_path, url, "", 0, 40))) == 0
            if len(shown_ended(run)) > ENDS:
                break
    finally:
        os.kill(cluster, signal.SIGTERM)
    assert ended_by(cluster) == 0
    facts = facts_of(tmp_path)
    _check_effects(facts)
    _check_records(tmp_path, run, facts, given)


def _check_effects(facts: dict[str, list[Any]]) -> None:
    """Each effect happened once, and each incarnation started once."""
    effects = [effect for _, _, effect in (*facts["started"], *facts["evicted"]) if effect]
    assert len(effects) > 20
    assert max(Counter(effects).values()) == 1, "an instruction acted twice"
    incarnations = Counter((job, incarnation) for job, incarnation, _ in facts["started"])
    assert max(incarnations.values()) == 1, "work was started twice"


def shown_ended(run: Path) -> set[str]:
    """The work whose end was shown to a controller."""
    found: set[str] = set()
    with JournalReader(run / "autopilot.journal") as reader:
        for tick in reader.ticks():
            work = tick.observation.snapshot.workloads
            found |= {name for name, state in zip(work.id, work.state, strict=True) if state >= State.SUCCEEDED}
    return found


def _check_records(folder: Path, run: Path, facts: dict[str, list[Any]], given: int) -> None:
    """Every end of work, every command and every effect is in the record of some controller."""
    sent, obeyed, last_s = set(), [], 0.0
    with JournalReader(run / "autopilot.journal") as reader:
        for tick in reader.ticks():
            last_s = tick.observation.now_s
            sent |= {instruction.id for instruction in tick.decided.instructions}
            obeyed += [command.sequence for command in tick.observation.commands]
    assert replay(run / "autopilot.journal").identical
    memory = FileMemoryStore(run / "memory.json").load()
    assert memory is not None
    ended = {job for job, at_s in facts["ended"] if at_s <= last_s}
    assert len(ended) > ENDS
    assert ended <= shown_ended(run), "the end of work was never shown to a controller"
    assert set(facts["done"]) <= sent, "an effect without a record"
    assert set(obeyed) == set(range(given))
    assert memory.people.last_sequence == given - 1
    fences = [int(line) for line in (folder / "fences").read_text("utf-8").split()]
    assert fences == sorted(set(fences)), "a fencing token was used twice"
