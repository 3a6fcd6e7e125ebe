"""One note of each code, kept in a file: a change of any is seen and read."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from autopilot.app.decisions.decision_rows import tick_document
from autopilot.app.when import When
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.records import About, Note, NoteCode
from autopilot.explain.notes import NOTES, WORDS, note_words
from autopilot.explain.story.telling import tell
from tests.golden.note_scenes import NOTE_SCENES, note_for
from tests.golden.refresh import FOLDER
from tests.kits.core_world import decide, holds, world
from tests.kits.ticking_world import EAGER

GOLDEN: dict[str, str] = json.loads((FOLDER / "words" / "notes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("code", sorted(NOTES))
def test_the_note_is_the_one_on_file(code: str) -> None:
    """Every code has a scene that makes it, and words; `python -m tests.golden.refresh` writes the file."""
    assert code in NOTE_SCENES, f"{code} has no scene in tests/golden/note_scenes.py"
    note = note_for(code)
    assert note_words(note) == GOLDEN[code]
    assert note.subject in GOLDEN[code]
    assert "unknown" not in GOLDEN[code].replace("load is unknown", "")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(note), type=Note) == note


def test_the_json_of_a_tick_has_the_parts_of_a_note_and_its_words() -> None:
    """A program reads code, subject and value without parsing a sentence."""
    decision = NOTE_SCENES["limit_warning"]().decision
    assert tick_document(decision, When())["notes"] == [
        {
            "code": "limit_warning",
            "about": "workload",
            "subject": "g",
            "value": 840.0,
            "unit": "s",
            "facts": [{"name": "limit", "value": 3600.0, "unit": "s"}],
            "words": GOLDEN["limit_warning"],
        }
    ]


def test_the_story_of_a_workload_has_the_notes_about_it() -> None:
    """Not those about a tenant of the same name."""
    observation = world("1x8", [holds("g", 8), holds("h", 1, on=())], 600.0)
    own = Note("limit_warning", About.WORKLOAD, "g", 840.0, "s")
    decision = replace(decide(observation, EAGER).decision, notes=(own, replace(own, about=About.TENANT)))
    assert [line for line in tell("g", observation, decision) if "note" in line] == [f"  note: {note_words(own)}"]
    assert not [line for line in tell("h", observation, decision) if "note" in line]


def test_every_code_has_words_of_its_own() -> None:
    """The enumeration and the table agree, no action uses a code of another, and no two notes read alike."""
    own = [case.code for action in ACTIONS for case in action.notes]
    assert set(WORDS) == set(NoteCode)
    assert len(own) == len(set(own))
    assert not set(own) & set(WORDS)
    assert set(GOLDEN) == set(NOTES)
    assert len(set(GOLDEN.values())) == len(GOLDEN)
