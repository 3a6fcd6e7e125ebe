"""The append-only record of observations, decisions, intents and outcomes.

`SqliteJournal` writes it, `JournalReader` reads it; replay and explain use the reader.
"""

from __future__ import annotations

from autopilot.records.journal.journal_file import SCHEMA, SqliteJournal
from autopilot.records.journal.reader import DecisionRecord, JournalReader, RunHeader, TickRecord

__all__ = ["SCHEMA", "DecisionRecord", "JournalReader", "RunHeader", "SqliteJournal", "TickRecord"]
