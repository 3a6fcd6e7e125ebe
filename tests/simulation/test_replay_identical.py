"""One seed gives one run, bit for bit; its journal decides the same again, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import blake2s
from pathlib import Path

import pytest

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Submit
from autopilot.core.planning.context import Context
from autopilot.records.journal import JournalReader
from autopilot.records.journal.decisions import memory_bytes, read_memory
from autopilot.records.journal.observations import ENCODER
from autopilot.records.replay import replay
from autopilot.records.replay.again import first_difference, remembered
from tests.conftest import ROOT
from tests.simulation.kit import AUTOPILOT, Setup, faulty_world, run

SEED = 9
OTHER_SEED = 10
HORIZON_MIN = 20
"""What happens in twenty minutes of work and faults; `test_faulty_runs.py` replays longer runs of many seeds."""


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
    """Run the faulty world with a journal; faults, failed effects and lists that did not come are in it."""
    path = folder / f"{name}.journal"
    ran = run(faulty_world(seed, folder, horizon_min=HORIZON_MIN), Setup(journal=path))
    ran.close()
    assert ran.simulated.accounts.faults
    assert any("is not complete" in moment.decision.halted for moment in ran.tape.moments)
    assert any(outcome.retryable for moment in ran.tape.moments for outcome in moment.observation.outcomes)
    return path


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Journals of the faulty world, by seed."""
    folder = tmp_path_factory.mktemp("journals")
    return {seed: play(folder, str(seed), seed) for seed in (SEED, OTHER_SEED)}


def test_the_same_seed_is_the_same_run_whatever_the_order_of_hashes(journals: dict[int, Path], tmp_path: Path) -> None:
    """A process that hashes texts in another way plays the same ticks, decisions and telemetry; another seed plays
    others.
    """
    program = (
        "import sys; from pathlib import Path; from tests.simulation.test_replay_identical import decided, play\n"
        "print(hash('text'), decided(play(Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    its_hash, its_run = done.stdout.split()
    assert int(its_hash) != hash("text")  # this process has another seed of hashes
    assert its_run == decided(journals[SEED]) != decided(journals[OTHER_SEED])


@pytest.mark.parametrize("telemetry", ["off", pytest.param("full", marks=pytest.mark.soak)])
def test_a_journal_replays_in_every_telemetry_mode(telemetry: str, tmp_path: Path) -> None:
    """`windowed` is replayed at every seed of the faulty runs; so are the others."""
    path = tmp_path / "run.journal"
    ran = run(faulty_world(SEED, tmp_path, horizon_min=HORIZON_MIN), Setup(journal=path, telemetry=telemetry))
    ran.close()
    again = replay(path)
    assert again.identical
    assert again.ticks == len(ran.tape.moments)


@pytest.mark.parametrize("seed", [SEED, pytest.param(OTHER_SEED, marks=pytest.mark.soak)])
def test_a_memory_that_was_written_and_read_at_every_tick_decides_alike(seed: int, journals: dict[int, Path]) -> None:
    """`explain` and a restarted controller begin with a memory whose names are in the order of the file, not of their
    coming.
    """
    memory, ticks = None, 0
    with JournalReader(journals[seed]) as reader:
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
    late_first = (Action("admit_gang", "", late), *ACTIONS[1:])
    run(faulty_world(SEED, tmp_path, horizon_min=HORIZON_MIN), Setup(journal=path, actions=late_first)).close()
    again = replay(path)
    assert not again.identical
    assert again.difference is not None
    assert again.difference.now_s < 900.0


def test_another_policy_gives_a_comparison(journals: dict[int, Path]) -> None:
    """Replay under the policy of the run finds no tick that differs; under one that only recommends it does."""
    from autopilot.settings import shipped_policy

    path = journals[SEED]
    same, other = replay(path, AUTOPILOT), replay(path, shipped_policy("recommend"))
    assert same.diff is not None
    assert other.diff is not None
    assert same.diff.ticks_that_differ == 0 < other.diff.ticks_that_differ
