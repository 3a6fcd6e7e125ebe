"""Measuring pairs on a GPU: the plan, what is missing, and a file that the model reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.colocation import rule_rates
from models.colocation_table import read_pairs
from scripts import measure_pairs
from scripts.measure_pairs import Case, document, main, missing, plan
from scripts.measured_loads import BATCH, SERVICES, _timed


def test_without_a_gpu_it_says_why_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch, the bindings of the driver, a GPU, a whole one, and no other program on it: each has its remedy."""
    out, said = tmp_path / "o.json", []
    error = type("NVMLError", (Exception,), {})

    def absent(*_: Any) -> Any:
        raise error("Driver Not Loaded")

    nvml = SimpleNamespace(NVMLError=error, nvmlInit=absent)
    cut = SimpleNamespace(
        NVMLError=error,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda _: "gpu",
        nvmlDeviceGetMigMode=lambda _: [1, 1],
    )
    whole = SimpleNamespace(**vars(cut) | {"nvmlDeviceGetMigMode": absent})
    whole.nvmlDeviceGetComputeRunningProcesses = lambda _: ["one"]
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    seen = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    for modules in ((None, nvml), (torch, None), (torch, nvml), (torch, cut), (torch, whole), (seen, whole)):
        for name, module in zip(("torch", "pynvml"), modules, strict=True):
            monkeypatch.setitem(sys.modules, name, module)
        assert main([str(out)]) == 0
        said.append(capsys.readouterr().out)
    wanted = (
        "PyTorch is not installed",
        "nvidia-ml-py is",
        "no GPU: Driver",
        "in MIG mode",
        "no CUDA",
        "1 other programs",
    )
    assert [each.startswith("SKIPPED: ") and word in each for each, word in zip(said, wanted, strict=True)] == [
        True
    ] * 6
    assert not out.exists()
    whole.nvmlDeviceGetComputeRunningProcesses = lambda _: []
    monkeypatch.setitem(sys.modules, "torch", seen)
    assert missing() == "", "nothing is missing"


def test_the_plan_has_every_case_of_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seven loads alone, two at half load, 25 pairs by two mechanisms, ten with two settings; a dry run prints it."""
    cases = plan((*SERVICES, *BATCH))
    assert len(cases) == 7 + 2 + 2 * (10 + 15) + 2 * 10
    assert plan(("gemm",)) == [Case(("gemm",)), Case(("gemm", "gemm"), "time-slicing"), Case(("gemm", "gemm"), "mps")]
    assert main([str(tmp_path / "o.json"), "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(cases) + 1
    assert told[-1] == "79 cases, about 7 min"
    with pytest.raises(SystemExit):
        main([str(tmp_path / "o.json"), "--seconds", "0"])


def client(rate: float, mean_ms: float = 0.0) -> dict[str, Any]:
    """What a client answers."""
    found = {"rate_per_s": rate, "peak_mib": 900, "device_used_mib": 1400}
    return found | ({"mean_ms": mean_ms, "p99_ms": 2 * mean_ms} if mean_ms else {})


def test_the_model_reads_what_was_measured(tmp_path: Path) -> None:
    """Rates relative to alone, a service by its latency; what failed, and what ran under settings, is no pair."""
    signals = {"sm_ratio": 0.4, "dram_ratio": 0.3, "duty_ratio": 0.6, "power_ratio": 0.5}

    def case(names: list[str], mechanism: str, *clients: dict[str, Any], setting: str = "") -> dict[str, Any]:
        return {"names": names, "mechanism": mechanism, "setting": setting, "signals": signals, "clients": [*clients]}

    results = [
        case(["gemm"], "alone", client(10.0)),
        case(["copy"], "alone", {"error": "out of memory"}),
        case(["decode half"], "alone", client(50.0, 4.0)),
        case(["decode half", "gemm"], "mps", client(50.0, 5.0), client(9.0)),
        case(["gemm", "gemm"], "time-slicing", client(5.0), {"error": "x"}),
        case(["gemm", "copy"], "mps", client(5.0), client(1.0)),
        case(["decode half", "gemm"], "mps", client(50.0, 4.5), client(8.0), setting="batch below normal"),
        case([], "mps") | {"step_back": {}},
    ]
    made = document({"gpu_model": "H100-80GB"}, 4.0, results)
    again = json.loads(json.dumps(made))
    found = read_pairs(again, "o.json")
    assert [(row.pair.own, row.pair.other, row.rate) for row in found] == [
        ("decode half", "gemm", 0.8),
        ("gemm", "decode half", 0.9),
        ("gemm", "gemm", 0.5),
    ]
    assert [row.own.peak_mib for row in found] == [1400.0] * 3
    assert rule_rates(found) == pytest.approx([0.82, 0.82, 0.64])
    assert again["activity"][0] | {"sum_ratio": 0.8, "union_ratio": 0.64} == again["activity"][0]


def test_a_service_is_timed_from_when_a_request_was_due() -> None:
    """Its latency includes the wait behind other requests."""
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            synchronize=lambda: None, mem_get_info=lambda: (1 << 20, 3 << 20), max_memory_reserved=lambda: 1 << 20
        )
    )
    found = _timed(lambda: None, 0.1, 2000.0, torch)
    assert (found["peak_mib"], found["device_used_mib"]) == (1, 2)
    assert 0.0 < found["p50_ms"] <= found["p99_ms"]
    assert "p50_ms" not in _timed(lambda: None, 0.01, 0.0, torch)


def test_one_failed_load_stops_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs with it are left out, the others are measured; without MPS it reports SKIPPED."""

    class Made:
        def __init__(self, *_: Any) -> None:
            self.name = ""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def load(self, name: str) -> None:
            self.name = name

        def start(self, *_: Any) -> None:
            pass

        def result(self, *_: Any) -> dict[str, Any]:
            return {"error": "out of memory"} if self.name == "copy" else client(10.0)

    monkeypatch.setattr(measure_pairs, "Client", Made)
    monkeypatch.setattr(measure_pairs, "Gpm", lambda: SimpleNamespace(over=lambda _: {}))
    monkeypatch.setattr(measure_pairs, "CONTROL", "no-such-program")
    found = measure_pairs.measure(plan(("gemm", "copy")), 1.0)
    assert [case["names"] for case in found] == [["gemm"], ["copy"], ["gemm", "gemm"]]
    assert "SKIPPED: MPS" in capsys.readouterr().err
