from __future__ import annotations

from math import nan

import pytest

from autopilot.core.model.objects import Share, Sharing, Trust
from autopilot.records.journal import observations
from autopilot.records.journal.observations import ObservationDecoder, ObservationEncoder
from autopilot.records.journal.table_codec import reader_of
from autopilot.records.replay.unequal import first_unequal
from tests.kits.core_world import holds, observe, snapshot, waits

SINCE: dict[str, dict[str, object]] = {
    "workloads": {"trust": Trust.UNTRUSTED, "share": Share.NEVER, "image": "", "steps_per_s": nan, "pausing": 0},
    "nodes": {"sharing": Sharing.WHOLE, "replicas": 1, "sharing_offers": 0, "scrubbed_s": nan},
}
"""The columns that earlier journals lack, in the order in which they came, with their values there."""


@pytest.mark.parametrize("table", SINCE)
def test_a_new_column_is_the_last(table: str) -> None:
    """Each earlier build wrote the columns up to one of these, so none may come before another."""
    assert observations._NAMES[table][-len(SINCE[table]) :] == tuple(SINCE[table])


def test_a_journal_without_the_columns_of_sharing_is_read_as_unstated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the ticks that state only what changed since the first."""
    first = observe(snapshot("2x8", [holds("a", 4), waits("b", 2)]), 1000.0)
    second = observe(snapshot("2x8", [holds("a", 4), waits("b", 2), waits("c", 1)]), 1010.0)
    encoder, decoder = ObservationEncoder(), ObservationDecoder()
    with monkeypatch.context() as earlier:
        for table, columns in SINCE.items():
            names = tuple(each for each in observations._NAMES[table] if each not in columns)
            earlier.setitem(observations._NAMES, table, names)
            earlier.setitem(observations._READERS, table, reader_of(names))
        written = [encoder.encode(each) for each in (first, second)]
    for observation, each in zip((first, second), written, strict=True):
        read = decoder.decode(*each)
        assert first_unequal(observation, read, "observation") is None
        for table, columns in SINCE.items():
            for column, value in columns.items():
                found = getattr(getattr(read.snapshot, table), column).tolist()
                assert found == pytest.approx([value] * len(found), nan_ok=True), (table, column)


@pytest.mark.parametrize("table", ["ranks", "latencies"])
def test_a_journal_without_a_table_is_read_with_an_empty_one(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports of ranks, and of single replicas, came later than the first journals."""
    seen = observe(snapshot("2x8", [holds("a", 4)]), 1000.0)
    with monkeypatch.context() as earlier:
        tables = tuple(each for each in observations.NAMED_TABLES if each[0] != table)
        earlier.setattr(observations, "NAMED_TABLES", tables)
        written = ObservationEncoder().encode(seen)
    assert len(getattr(ObservationDecoder().decode(*written).snapshot, table).id) == 0
