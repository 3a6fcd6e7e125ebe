from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.hardware.dcgm import SIGNALS
from autopilot.core.model.errors import InputError, InvariantError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory
from autopilot.core.model.memory.halt import HaltMemory
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.records.journal import JournalReader, SqliteJournal, TickRecord
from autopilot.records.memory import FileMemoryStore
from autopilot.records.replay.unequal import first_unequal
from benchmarks.small_world import AUTO, Tick, World

RULES = JournalRules(keyframe_s=600.0, keyframe_ticks=16)


@pytest.fixture(scope="module")
def ticks() -> list[Tick]:
    """Some hundred turns of a small loop."""
    return list(World(3, seed=5, backlog=20).run(150))


def write(path: Path, ticks: list[Tick], rules: JournalRules = RULES) -> None:
    """A whole run."""
    with SqliteJournal(path, durable=False, rules=rules, run={"seed": 5}, version="0.1.0") as journal:
        record(journal, ticks)


def record(journal: SqliteJournal, ticks: list[Tick]) -> None:
    """Each tick as the controller records it."""
    for tick in ticks:
        journal.intend(tick.observation, AUTO, tick.memory, tick.step.decision, tick.step.instructions)
        journal.conclude(tick.observation.tick, tick.outcomes)


@pytest.fixture(scope="module")
def path(ticks: list[Tick], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of those turns."""
    place = tmp_path_factory.mktemp("journal") / "run.journal"
    write(place, ticks)
    return place


# --- what is kept ---------------------------------------------------------------------------------


def test_every_tick_is_read_as_it_was(path: Path, ticks: list[Tick]) -> None:
    """Observation, decision, instructions and outcomes of each tick come back; memory on keyframes."""
    with JournalReader(path) as reader:
        assert len(reader) == len(ticks)
        for tick, read in zip(ticks, reader.ticks(), strict=True):
            assert first_unequal(tick.observation, read.observation, "observation") is None
            assert first_unequal(tick.step.decision, read.decided.decision, "decision") is None
            assert read.decided.instructions == tick.step.instructions
            assert read.decided.outcomes == tick.outcomes
            assert read.decided.policy == AUTO
            if read.decided.memory is not None:
                assert first_unequal(tick.memory, read.decided.memory, "memory") is None


def test_a_tick_is_found_without_reading_those_before_its_keyframe(path: Path, ticks: list[Tick]) -> None:
    """Any tick can be read by its number."""
    with JournalReader(path) as reader:
        for at in (0, 1, 77, 149):
            number = reader.find_tick(ticks[at].observation.tick)
            assert number == at
            assert first_unequal(ticks[at].observation, reader.at(at).observation, "observation") is None
        assert reader.find_tick(10_000) is None
        with pytest.raises(InputError, match="no tick at position 999"):
            reader.at(999)


def test_a_tick_is_read_with_all_that_its_memory_comes_from(path: Path, ticks: list[Tick]) -> None:
    """From the keyframe before it, which has its memory, up to it and no further."""
    with JournalReader(path) as reader:
        for number in (0, 77, 149):
            read = list(reader.up_to(number))
            keyframe, last = read[0].decided, read[-1]
            assert keyframe.memory is not None
            assert [tick.decided.memory for tick in read[1:]] == [None] * (len(read) - 1)
            assert [tick.decided.number for tick in read] == list(range(keyframe.number, number + 1))
            assert first_unequal(ticks[number].observation, last.observation, "observation") is None


def test_decisions_are_read_alone(path: Path, ticks: list[Tick]) -> None:
    """Decisions can be walked without decoding what was observed, from any position."""
    with JournalReader(path) as reader:
        for first in (None, 100):
            read = list(reader.decisions(first))
            wanted = ticks[first or 0 :]
            assert [decided.tick for decided in read] == [tick.observation.tick for tick in wanted]
            for tick, decided in zip(wanted, read, strict=True):
                assert first_unequal(tick.step.decision, decided.decision, "decision") is None


def test_a_proposal_is_found_by_its_id_and_by_its_workload(path: Path, ticks: list[Tick]) -> None:
    """`explain` finds the tick of a proposal by id, and all proposals for one workload."""
    tick = next(tick for tick in ticks if tick.step.decision.plan.proposals)
    proposal = tick.step.decision.plan.proposals[0]
    with JournalReader(path) as reader:
        number = reader.find_proposal(proposal.id)[0]
        assert reader.at(number).decided.tick == tick.observation.tick
        assert (number, proposal.id) in reader.find_workload(proposal.subject.name)
        assert reader.find_proposal("no-such-proposal") == ()


def test_the_run_is_described(path: Path) -> None:
    """The record says which version and which run wrote it."""
    with JournalReader(path) as reader:
        header = reader.runs[0]
        assert (header.version, header.description, header.first_tick) == ("0.1.0", {"seed": 5}, 1)
        assert reader.tick_bounds() == (1, 150)


def test_segments_start_with_a_keyframe(path: Path) -> None:
    """A keyframe comes after `keyframe_s`, but not before `keyframe_ticks` ticks."""
    with JournalReader(path) as reader:
        keyframes = [decided for decided in reader.decisions() if decided.memory is not None]
    assert len(keyframes) > 3
    for one, two in pairwise(keyframes):
        assert two.now_s - one.now_s >= 600.0
        assert two.number - one.number >= 16


def test_a_second_run_is_appended(tmp_path: Path, ticks: list[Tick]) -> None:
    """A controller that starts again goes on in its record; each run starts with a keyframe."""
    place = tmp_path / "run.journal"
    write(place, ticks[:40])
    write(place, ticks[40:90])
    with JournalReader(place) as reader:
        decided = list(reader.decisions())
        assert [record.tick for record in decided] == list(range(1, 91))
        assert [record.tick for record in decided if record.starts] == [1, 41]
        assert [run.first_tick for run in reader.runs] == [1, 41]


def test_a_record_is_replaced_on_request_only_if_it_is_one(tmp_path: Path, ticks: list[Tick]) -> None:
    """`replace` begins anew, and never removes a file that is not a journal."""
    place = tmp_path / "run.journal"
    write(place, ticks[:40])
    with SqliteJournal(place, durable=False, rules=RULES, replace=True) as journal:
        record(journal, ticks[:5])
    with JournalReader(place) as reader:
        assert len(reader) == 5
    notes = tmp_path / "notes.txt"
    notes.write_text("not yours" * 50)
    with pytest.raises(InputError, match=r"notes\.txt: not a journal"):
        SqliteJournal(notes, durable=False, rules=RULES, replace=True)
    assert notes.read_text() == "not yours" * 50


# --- order and durability --------------------------------------------------------------------------


def test_an_intent_is_on_the_disk_before_its_effects(tmp_path: Path, ticks: list[Tick]) -> None:
    """When `intend` returns, the files as they are hold the decision, though nothing was closed."""
    place = tmp_path / "run.journal"
    journal = SqliteJournal(place, durable=True, rules=RULES)
    for count, tick in enumerate(ticks[:5], 1):
        journal.intend(tick.observation, AUTO, tick.memory, tick.step.decision, tick.step.instructions)
        crashed = tmp_path / f"crash-{count}"
        crashed.mkdir()
        for file in tmp_path.glob("run.journal*"):
            shutil.copy(file, crashed)
        with JournalReader(crashed / "run.journal") as reader:
            assert [decided.tick for decided in reader.decisions()][-1] == tick.observation.tick
        journal.conclude(tick.observation.tick, tick.outcomes)
    journal.close()


def test_a_record_can_be_read_while_it_is_written(tmp_path: Path, ticks: list[Tick]) -> None:
    """A reader sees what is committed, beside a writer that goes on."""
    place = tmp_path / "run.journal"
    with SqliteJournal(place, durable=True, rules=RULES) as journal:
        record(journal, ticks[:10])
        with JournalReader(place) as reader:
            assert len(list(reader.ticks())) == 10
        record(journal, ticks[10:20])
    with JournalReader(place) as reader:
        assert len(list(reader.ticks())) == 20


def test_an_interrupted_run_keeps_its_work(tmp_path: Path, ticks: list[Tick]) -> None:
    """Ctrl-C in the middle of a run leaves every tick up to then, in one plain file."""
    place = tmp_path / "run.journal"

    def interrupted() -> None:
        with SqliteJournal(place, durable=False, rules=RULES) as journal:
            record(journal, ticks[:33])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [file.name for file in tmp_path.iterdir()] == ["run.journal"]
    with JournalReader(place) as reader:
        assert len(list(reader.ticks())) == 33


def test_outcomes_belong_to_the_tick_before(tmp_path: Path, ticks: list[Tick]) -> None:
    """Outcomes of a tick that is not the last one recorded are refused."""
    with SqliteJournal(tmp_path / "run.journal", durable=False, rules=RULES) as journal:
        record(journal, ticks[:3])
        outcomes = next(tick.outcomes for tick in ticks if tick.outcomes)
        with pytest.raises(InvariantError, match="outcomes of tick 99"):
            journal.conclude(99, outcomes)


# --- limits ----------------------------------------------------------------------------------------


def test_oldest_whole_segments_are_dropped_when_too_old(tmp_path: Path, ticks: list[Tick]) -> None:
    """Beyond `max_age_s` whole segments go, oldest first; what is left starts with a keyframe and reads."""
    place = tmp_path / "run.journal"
    rules = replace(RULES, max_age_s=3600.0)
    write(place, ticks, rules)
    with JournalReader(place) as reader:
        read = list(reader.ticks())
    assert 0 < len(read) < len(ticks)
    assert read[0].decided.memory is not None
    assert read[-1].decided.tick == 150
    assert read[-1].observation.now_s - read[0].observation.now_s < 2 * 3600.0
    for tick, kept in zip(ticks[-len(read) :], read, strict=True):
        assert first_unequal(tick.observation, kept.observation, "observation") is None


def test_the_file_stays_below_its_limit(tmp_path: Path) -> None:
    """Beyond `max_mib` whole segments go, and the file gives their room back."""
    place = tmp_path / "run.journal"
    world = World(40, seed=2, backlog=100)
    rng = np.random.default_rng(0)
    written = []
    rules = JournalRules(keyframe_s=60.0, keyframe_ticks=5, max_mib=1)
    with SqliteJournal(place, durable=False, rules=rules) as journal:
        for tick in world.run(60):
            noise = rng.random((len(SIGNALS), 3, 320)).astype(np.float32)
            world.measure_gpus(noise, noise, np.ones((3, 320), np.int32))
            record(journal, [tick])
            written.append(tick)
    segment = 1_000_000 // 2
    assert place.stat().st_size < (1 << 20) + segment
    with JournalReader(place) as reader:
        left = list(reader.ticks())
    assert 5 < len(left) < 60
    assert left[-1].decided.tick == written[-1].observation.tick


# --- bad places and bad files ----------------------------------------------------------------------


def test_a_folder_is_not_a_journal(tmp_path: Path) -> None:
    """A path that is a folder, or has no folder, is refused with the fix."""
    with pytest.raises(InputError, match="is a folder; give the path of a file"):
        SqliteJournal(tmp_path, durable=False, rules=RULES)
    with pytest.raises(InputError, match="does not exist; create it"):
        SqliteJournal(tmp_path / "missing" / "run.journal", durable=False, rules=RULES)
    with pytest.raises(InputError, match="is a folder"):
        JournalReader(tmp_path)
    with pytest.raises(InputError, match="no such journal"):
        JournalReader(tmp_path / "run.journal")


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """A read-only place is refused before the run, and says what helps."""
    place = tmp_path
    place.chmod(0o500)
    if os.access(place, os.W_OK):  # root may write anywhere, but for what the kernel keeps
        place = Path("/proc")
    if not place.is_dir():
        pytest.skip("needs a folder that cannot be written")
    with pytest.raises(InputError, match="a folder with write access"):
        SqliteJournal(place / "run.journal", durable=False, rules=RULES)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("durable", [True, False])
def test_a_full_disk_keeps_the_work_so_far(tmp_path: Path, ticks: list[Tick], durable: bool) -> None:
    """When the disk is full, one message names the file, the fix and what is kept; it stays refused."""
    place = tmp_path / "run.journal"
    journal = SqliteJournal(place, durable=durable, rules=RULES)
    record(journal, ticks[:10])
    journal.flush()
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    said = r"run\.journal.*full.*Free some space.*Ticks up to \d+ are kept"
    with pytest.raises(InputError, match=said):
        record(journal, ticks[10:] * 4)
    with pytest.raises(InputError, match="full"):
        record(journal, ticks[:1])
    journal.close()
    with JournalReader(place) as reader:
        assert len(list(reader.ticks())) >= 10


def test_other_files_are_not_journals(tmp_path: Path) -> None:
    """An empty file, a text and another database are each told apart."""
    empty, text, other = tmp_path / "empty", tmp_path / "text", tmp_path / "other"
    empty.touch()
    text.write_text("id,gpus\n" * 100)
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE runs (x)")
    db.execute("PRAGMA application_id = 7")
    db.commit()
    db.close()
    for path, words in ((empty, "is empty"), (text, "not a journal"), (other, "a database, but not")):
        with pytest.raises(InputError, match=words):
            JournalReader(path)


def test_a_truncated_file_is_one_clear_error(path: Path, tmp_path: Path) -> None:
    """A file cut off anywhere is refused with its name; never a traceback of another kind."""
    whole = path.read_bytes()
    cut = tmp_path / "cut.journal"
    for size in (10, 99, 3000, 4096, len(whole) // 2, len(whole) - 4096):
        cut.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"cut\.journal"), JournalReader(cut) as reader:
            list(reader.ticks())


def test_a_changed_byte_is_found(path: Path, tmp_path: Path) -> None:
    """A record that was tampered with is refused at that tick; the ticks before are still read."""
    changed = tmp_path / "changed.journal"
    shutil.copy(path, changed)
    db = sqlite3.connect(changed)
    for name in ("observation", "decision"):
        blob = bytearray(db.execute(f"SELECT {name} FROM ticks WHERE number = 60").fetchone()[0])
        blob[len(blob) // 2] ^= 1
        db.execute("SAVEPOINT before")
        db.execute(f"UPDATE ticks SET {name} = ? WHERE number = 60", (bytes(blob),))
        db.commit()
        read: list[TickRecord] = []
        with (
            JournalReader(changed) as reader,
            pytest.raises(InputError, match=r"changed\.journal, tick 61: .*checksum"),
        ):
            read.extend(record for record in reader.ticks())
        shutil.copy(path, changed)
        db.close()
        db = sqlite3.connect(changed)
    db.execute("DELETE FROM ticks WHERE number = 60")
    db.commit()
    db.close()
    with JournalReader(changed) as reader, pytest.raises(InputError, match="position 60 is missing"):
        list(reader.ticks())


def test_a_journal_of_an_earlier_schema_is_one_clear_error(path: Path, tmp_path: Path) -> None:
    """It is refused before anything of it is read, or written to it after an upgrade."""
    old = shutil.copy(path, tmp_path / "old.sqlite")
    with sqlite3.connect(old) as db:
        db.execute("UPDATE runs SET schema = 'gpu-autopilot/journal/2'")
    with pytest.raises(
        InputError, match=r"old\.sqlite: written as gpu-autopilot/journal/2; this version reads .*/4\. "
    ):
        JournalReader(Path(old))
    with pytest.raises(InputError, match=r"this version writes .*/4, .*\. Move it away; "):
        SqliteJournal(old, durable=False, rules=RULES)
    with sqlite3.connect(old) as db:
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (1,), "a mixture is read by no version"


def test_a_closed_journal_takes_nothing(tmp_path: Path, ticks: list[Tick]) -> None:
    """After `close` a tick is refused, and closing twice does no harm."""
    journal = SqliteJournal(tmp_path / "run.journal", durable=False, rules=RULES)
    journal.close()
    journal.close()
    with pytest.raises(InputError, match="is closed"):
        record(journal, ticks[:1])


# --- memory ----------------------------------------------------------------------------------------


def test_a_first_start_has_no_memory(tmp_path: Path) -> None:
    """No file is a first start, not an error."""
    assert FileMemoryStore(tmp_path / "memory.json").load() is None


@pytest.mark.parametrize("damage", ["cut", "digit", "schema", "binary", "empty"])
def test_a_damaged_memory_stops_the_start(tmp_path: Path, damage: str) -> None:
    """A controller never starts having silently forgotten its timers."""
    path = tmp_path / "memory.json"
    store = FileMemoryStore(path)
    store.save(ControllerMemory(tick=7, budget=BudgetMemory(cooled_until_s={"job": 1234.5})))
    text = path.read_text()
    damaged = {
        "cut": text[: len(text) // 2],
        "digit": text.replace("1234.5", "1234.6"),
        "empty": "",
        "schema": text.replace("memory/9", "memory/99"),
        "binary": "\x00\x01",
    }
    path.write_text(damaged[damage])
    with pytest.raises(InputError, match=r"memory\.json.*remove it to start with an empty memory"):
        store.load()


def test_a_memory_that_cannot_be_saved_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When saving fails half-way, the last memory is still there, and nothing half-written beside it."""
    path = tmp_path / "memory.json"
    store = FileMemoryStore(path)
    store.save(ControllerMemory(tick=7))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        store.save(ControllerMemory(tick=8))
    assert store.load() == ControllerMemory(tick=7, halt=HaltMemory(paused_since_s=store.load().halt.paused_since_s))  # type: ignore[union-attr]
    assert [file.name for file in tmp_path.iterdir()] == ["memory.json"]
