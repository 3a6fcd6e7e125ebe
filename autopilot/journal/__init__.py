"""The append-only record of what was observed, decided, intended and done.

`SqliteJournal` writes it, `JournalReader` reads it; replay and explain stand on the second.
"""

from __future__ import annotations

from autopilot.journal.journal_file import SCHEMA, SqliteJournal
from autopilot.journal.reader import DecisionRecord, JournalReader, RunHeader, TickRecord

__all__ = ["SCHEMA", "DecisionRecord", "JournalReader", "RunHeader", "SqliteJournal", "TickRecord"]
