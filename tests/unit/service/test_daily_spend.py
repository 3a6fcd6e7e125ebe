"""Daily spending in the service: when it is computed, and what is shown where it is not known."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, KEYS, Row
from autopilot.metering.prices import flat_prices, load_prices
from autopilot.metering.segments import DAY, HOUR, Segments, Store, open_store
from autopilot.service.spending import DailySpend

DAY_S = 86_400.0


def metered(folder: Path, days: int, *, usual: int = 2, last: int = 3, model: str = "H100-80GB") -> Path:
    """A tenant with `usual` borrowed GPUs on every day, and `last` on the last day."""
    segments = Segments(folder, start_s=None, every=24)
    for begin in range(0, days * DAY, HOUR):
        gpus = last if begin >= (days - 1) * DAY else usual
        rows = [_row(begin, "capacity", 8, model), _row(begin, "held", gpus, model, tenant="vision")]
        segments.put(begin, begin + HOUR, rows)
    segments.close()
    return folder


def _row(begin: int, kind: str, gpus: int, model: str, tenant: str = "") -> Row:
    texts = {"kind": kind, "gpu_model": model, "tenant": tenant}
    grains = gpus * 3600 * GRAINS_PER_GPU_S
    amounts = {"gpu_time": grains, "borrowed": grains if tenant else 0}
    return Row(
        begin, begin + HOUR, tuple(texts.get(k, "") for k in KEYS), tuple(amounts.get(name, 0) for name in AMOUNTS)
    )


def test_the_last_day_is_known_after_it_has_ended(tmp_path: Path) -> None:
    """3 GPUs after 2 on each of eight days are 1.5 times the mean."""
    spend = DailySpend(metered(tmp_path, 9), flat_prices(2.0))
    spend.look(9 * DAY_S + 5.0)
    spend.wait()
    assert spend.ratios == {"vision": pytest.approx(1.5)}


def test_too_little_history_and_an_absent_store_are_unknown(tmp_path: Path) -> None:
    """Seven days say nothing, and neither does a folder without metering, nor a day that has passed unmetered."""
    for folder, now_s in ((metered(tmp_path / "a", 7), 7 * DAY_S), (tmp_path / "none", 5.0)):
        spend = DailySpend(folder, flat_prices(2.0))
        spend.look(now_s)
        spend.wait()
        assert spend.ratios == {}
    spend = DailySpend(metered(tmp_path / "b", 9), flat_prices(2.0))
    for now_s, known in ((9 * DAY_S, True), (10 * DAY_S + 1.0, False)):
        spend.look(now_s)
        spend.wait()
        assert bool(spend.ratios) == known


def test_a_gpu_model_without_a_price_is_unknown(tmp_path: Path) -> None:
    """No ratio rests on a part of the charge."""
    prices = load_prices().model_copy(deep=True)
    for region in prices.regions.values():
        region.gpu_hour.pop("other", None)
    spend = DailySpend(metered(tmp_path, 9, model="unheard-of"), prices)
    spend.look(9 * DAY_S)
    spend.wait()
    assert spend.ratios == {}


def test_it_is_computed_once_a_day_and_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks go on while it computes; it is asked again on the next day, and hourly while nothing is known."""
    asked: list[Path] = []
    held = threading.Event()

    def slow(folder: Path) -> Store:
        asked.append(folder)
        held.wait(20.0)
        return open_store(folder)

    monkeypatch.setattr("autopilot.service.spending.open_store", slow)
    spend = DailySpend(metered(tmp_path, 9), flat_prices(2.0))
    for second in range(100):
        spend.look(9 * DAY_S - 50.0 + second)
    assert spend.ratios == {}
    held.set()
    spend.wait()
    assert len(asked) == 1, "the first one was still computing"
    for at_s in (9 * DAY_S + 51.0, 9 * DAY_S + 4000.0, 9 * DAY_S + 40_000.0):
        spend.look(at_s)
        spend.wait()
    assert spend.ratios == {"vision": pytest.approx(1.5)}
    known_after = len(asked)
    spend.look(9 * DAY_S + 80_000.0)
    spend.wait()
    assert len(asked) == known_after
