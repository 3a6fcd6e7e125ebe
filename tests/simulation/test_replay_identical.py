"""One seed gives one run, bit for bit; its journal decides the same again, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import blake2s
from pathlib import Path

import pytest

from autopilot.core.actions import ACTIONS
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.planning.action import Action
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Submit
from autopilot.journal import JournalReader
from autopilot.journal.decisions import memory_bytes, read_memory
from autopilot.journal.observations import ENCODER
from autopilot.replay import replay
from autopilot.replay.again import first_difference, remembered
from tests.conftest import ROOT
from tests.simulation.kit import AUTOPILOT, Setup, faulty_world, run

SEED = 5


def decided(path: Path) -> str:
    """Digest of all that a journal holds of observations, decisions, instructions and outcomes."""
    digest = blake2s()
    with JournalReader(path) as reader:
        for record in reader.ticks():
            part = record.decided
            digest.update(ENCODER.encode((part.decision, part.instructions, part.outcomes, part.memory_digest)))
            digest.update(record.observation.snapshot.telemetry.mean.tobytes())
    return digest.hexdigest()


def play(folder: Path, name: str = "run", seed: int = SEED) -> Path:
    """Run the faulty world with a journal."""
    path = folder / f"{name}.journal"
    run(faulty_world(seed, folder), Setup(journal=path)).close()
    return path


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    """Twice the same seed: the same ticks, decisions and telemetry; another seed: others."""
    first, again, other = play(tmp_path, "a"), play(tmp_path, "b"), play(tmp_path, "c", SEED + 1)
    assert decided(first) == decided(again) != decided(other)


def test_nothing_depends_on_the_order_of_hashes(tmp_path: Path) -> None:
    """Processes that hash texts differently play the same run."""
    program = (
        "import sys; from pathlib import Path; from tests.simulation.test_replay_identical import decided, play\n"
        "print(decided(play(Path(sys.argv[1]))))"
    )
    found = set()
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": number}
        found.add(
            subprocess.run(
                [sys.executable, "-c", program, str(folder)],
                cwd=ROOT,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
    assert len(found) == 1
    assert found != {""}


@pytest.mark.parametrize("telemetry", ["off", "full"])
def test_a_journal_replays_in_every_telemetry_mode(telemetry: str, tmp_path: Path) -> None:
    """`windowed` is replayed at every seed of the faulty runs; so are the others."""
    path = tmp_path / "run.journal"
    ran = run(faulty_world(SEED, tmp_path), Setup(journal=path, telemetry=telemetry))
    ran.close()
    again = replay(path)
    assert again.identical
    assert again.ticks == len(ran.tape.moments)


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_a_memory_that_was_written_and_read_at_every_tick_decides_alike(seed: int, tmp_path: Path) -> None:
    """`explain` and a restarted controller begin with a memory whose names are in the order of the file, not of their
    coming.
    """
    memory, ticks = None, 0
    with JournalReader(play(tmp_path, seed=seed)) as reader:
        for record in reader.ticks():
            memory, difference = remembered(memory, record)
            assert difference is None
            kept = replace(read_memory(memory_bytes(memory)), fence=memory.fence)
            step = reconcile(kept, record.observation, record.decided.policy)
            assert first_difference(record, step.decision, step.instructions) is None
            memory, ticks = step.memory, ticks + 1
    assert ticks > 100


def test_a_run_by_another_logic_is_told_apart(tmp_path: Path) -> None:
    """A planted action decides what the shipped logic does not: replay names the first tick and field that differ."""

    def late(ctx: Context, submit: Submit) -> None:
        """No admission in the first quarter of an hour."""
        if ctx.now_s >= 900.0:
            ACTIONS[0].propose(ctx, submit)

    path = tmp_path / "run.journal"
    run(
        faulty_world(SEED, tmp_path), Setup(journal=path, actions=(Action("admit_gang", "", late), *ACTIONS[1:]))
    ).close()
    again = replay(path)
    assert not again.identical
    assert again.difference is not None
    assert again.difference.now_s < 900.0


def test_another_policy_gives_a_comparison(tmp_path: Path) -> None:
    """Replay under the policy of the run finds no tick that differs; under one that only recommends it does."""
    from autopilot.settings import shipped_policy

    path = play(tmp_path)
    same, other = replay(path, AUTOPILOT), replay(path, shipped_policy("recommend"))
    assert same.diff is not None
    assert other.diff is not None
    assert same.diff.ticks_that_differ == 0 < other.diff.ticks_that_differ
