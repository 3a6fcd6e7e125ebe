"""Power by the energy counter: differences of readings, and what is unknown instead of wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from collectors.energy import STALE_S, EnergyCounters
from collectors.exporter import ExporterCollector, Target
from collectors.prometheus import PrometheusCollector
from tests.e2e.test_prometheus_collector import serving
from tests.kits.exporter_text import Device, render

GPU = "GPU-a"
START_MJ = 9.1e14
W = 1000.0
"""Millijoules of one watt in a second."""


def counted(*readings: tuple[float, float], now_s: float | None = None) -> float | None:
    """Watts after these readings (s, mJ)."""
    counters = EnergyCounters()
    for at_s, energy_mj in readings:
        counters.take([(GPU, at_s, energy_mj)])
    return counters.power_w(readings[-1][0] if now_s is None else now_s).get(GPU)


def steady(watts: float, until_s: float, begin_s: float = 0.0, start_mj: float = START_MJ) -> list[tuple[float, float]]:
    """Readings every 15 s."""
    count = int((until_s - begin_s) // 15) + 1
    return [(begin_s + 15.0 * step, start_mj + 15.0 * step * watts * W) for step in range(count)]


def test_the_difference_of_the_counter_is_the_energy() -> None:
    """500 W are 500 W from the second reading on, and the latest minute counts, not the whole time."""
    assert counted((0.0, START_MJ)) is None
    assert counted((0.0, START_MJ), (15.0, START_MJ + 15 * 500 * W)) == 500.0
    calm = steady(100.0, 600.0)
    assert counted(*calm, *steady(700.0, 705.0, 615.0, calm[-1][1] + 15 * 700 * W)) == pytest.approx(700.0)


def test_a_reading_that_an_exporter_repeats_is_one_reading() -> None:
    """Scraped every 15 s, read every 30 s: 400 W, and never 0 or 800 W."""
    repeated = [(15.0 * step, START_MJ + 30.0 * (step // 2) * 400 * W) for step in range(9)]
    for end in range(3, len(repeated)):
        assert counted(*repeated[:end]) == pytest.approx(400.0)


@pytest.mark.parametrize(
    ("energy_mj", "why"),
    [
        (0.0, "the driver was loaded again"),
        (START_MJ, "a replaced GPU"),
        (START_MJ + 1e12, "no board uses a GJ in 15 s"),
        (float("nan"), "blank"),
        (float("inf"), "overflow"),
        (-5.0, "negative"),
    ],
)
def test_a_counter_that_jumps_is_unknown_until_the_next_difference(energy_mj: float, why: str) -> None:
    """Neither zero nor a spike comes of it; what is no reading at all changes nothing."""
    before = steady(300.0, 120.0)
    no_reading = not 0.0 <= energy_mj < float("inf")
    found = counted(*before, (135.0, energy_mj))
    assert found == (pytest.approx(300.0) if no_reading else None), why
    if not no_reading:
        assert counted(*before, (135.0, energy_mj), (150.0, energy_mj + 15 * 300 * W)) == pytest.approx(300.0)


def test_a_counter_that_stands_or_is_not_read_is_unknown() -> None:
    """A stuck counter and a silent source are not 0 W. After a pause the time before it does not count."""
    before = steady(300.0, 120.0)
    stands = [(120.0 + 15.0 * step, before[-1][1]) for step in range(1, 20)]
    assert counted(*before, *stands) is None
    assert counted(*before, now_s=120.0 + STALE_S) is None
    assert counted(*before, now_s=60.0) is None, "the clock was set back"
    assert counted(*before, (120.0 + 2 * STALE_S, before[-1][1] + 1e6)) is None


def test_a_scrape_reads_the_counter_once_for_a_gpu_with_instances() -> None:
    """Both instances repeat the counter of their board; a GPU without the field is not in the answer."""
    watts, now_s = 450.0, 0.0

    def fetch(_: str) -> bytes:
        value = {156: START_MJ + now_s * watts * W}
        cut = [Device("GPU-m", gi_id=str(n), profile="3g.40gb").reading(value) for n in (1, 2)]
        return render([*cut, Device(GPU, 1).reading(value), Device("GPU-b", 2).reading({156: None})]).encode()

    collector = ExporterCollector([Target("http://a/metrics")], fetch)
    for now_s in (0.0, 15.0, 30.0):
        collector.collect(now_s)
    assert collector.counted_w(30.0) == {"GPU-m": watts, GPU: watts}


def canned(energy_mj: Callable[[float], float]) -> Callable[[str], tuple[int, bytes]]:
    """A Prometheus with the counter of one GPU, sampled each whole 30 s."""

    def answer(path: str) -> tuple[int, bytes]:
        asked = parse_qs(urlsplit(path).query)
        name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
        if "/label/" in path:
            return 200, json.dumps({"status": "success", "data": [name] if "__name__" in path else []}).encode()
        query, now_s, rows = asked["query"][0], float(asked["time"][0]), []
        if name in query:
            sampled_s = now_s // 30 * 30
            value = sampled_s if "timestamp" in query else energy_mj(sampled_s)
            rows = [{"metric": {"UUID": GPU}, "value": [now_s, repr(value)]}]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()

    return answer


def test_prometheus_brings_the_counter_with_the_time_of_its_sample() -> None:
    """Asked between two samples the power is still exact; a reset is unknown."""
    with serving(canned(lambda at_s: START_MJ + at_s * 600 * W if at_s < 1200 else at_s * 600 * W)) as url:
        collector = PrometheusCollector(url, timeout_s=5.0, workers=1)
        for now_s, watts in ((1010.0, None), (1029.0, 600.0), (1047.0, 600.0), (1065.0, 600.0), (1200.0, None)):
            collector.collect(now_s)
            assert collector.counted_w(now_s).get(GPU) == (None if watts is None else pytest.approx(watts)), now_s


def test_series_that_come_after_the_first_look_are_found_at_the_next_one() -> None:
    """A Prometheus that is read before its first scrape is not taken for one without GPUs."""
    whole, empty = canned(lambda at_s: START_MJ + at_s * 600 * W), True

    def answer(path: str) -> tuple[int, bytes]:
        if empty and "/label/" in path:
            return 200, json.dumps({"status": "success", "data": []}).encode()
        return whole(path)

    with serving(answer) as url:
        collector = PrometheusCollector(url, timeout_s=5.0, workers=1)
        (gap,) = collector.collect(1010.0).gaps
        assert "no DCGM series" in gap.reason
        empty = False
        assert all("no DCGM series" not in gap.reason for gap in collector.collect(1015.0).gaps)
