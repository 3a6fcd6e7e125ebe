"""Request files, thinning, and synthetic requests against the traces they are fitted to."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from autopilot.core.model.errors import InputError
from simulator.inference.requests import Arrivals, ListedArrivals, Requests, read_requests, thin
from simulator.inference.synthetic_requests import (
    DAY_S,
    SHAPES,
    RequestShape,
    ServiceLoad,
    SyntheticArrivals,
    generate_requests,
)

HEADER = "t_s,service,input_tokens,output_tokens,latency_s,region\n"
ROOT = Path(__file__).resolve().parents[3]


def write(folder: Path, text: str, name: str = "requests.csv") -> Path:
    """A file of that text."""
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_is_read_in_order_of_time_and_keeps_what_it_adds(tmp_path: Path) -> None:
    """Rows come sorted, equal times in the file's order; extra columns and unknown latencies stay."""
    path = write(tmp_path, HEADER + "5,b,1,2,0.5,eu\n0,a,3,4,,us\n5,a,5,6,1.5,cn\n")
    requests = read_requests(path)
    assert requests.t_s.tolist() == [0, 5, 5]
    assert requests.input_tokens.tolist() == [3, 1, 5]
    assert [requests.services[code] for code in requests.service] == ["a", "b", "a"]
    assert math.isnan(requests.latency_s[0])
    assert requests.extra["region"].tolist() == ["us", "eu", "cn"]
    assert requests.arrivals("a").output_tokens.tolist() == [4, 6]
    assert requests.unusable_by_reason == {}


def test_parquet_and_csv_give_the_same_requests(tmp_path: Path) -> None:
    """The two formats differ in nothing but the file."""
    frame = pd.DataFrame({"t_s": [2.5, 0.25], "service": ["x", "y"], "input_tokens": [7, 8], "output_tokens": [9, 10]})
    frame.to_parquet(tmp_path / "r.parquet")
    frame.to_csv(tmp_path / "r.csv.gz", index=False)
    left, right = read_requests(tmp_path / "r.parquet"), read_requests(tmp_path / "r.csv.gz")
    for column in ("t_s", "service", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(left, column), getattr(right, column))
    assert left.services == right.services == ("x", "y")


def test_each_row_that_cannot_be_used_is_counted_by_reason(tmp_path: Path) -> None:
    """One bad row of each sort: left out, counted once, the good ones kept."""
    rows = [
        "1,a,1,1,1,eu",
        "nan,a,1,1,1,eu",
        "soon,a,1,1,1,eu",
        "inf,a,1,1,1,eu",
        "-1,a,1,1,1,eu",
        "1e18,a,1,1,1,eu",
        "1,,1,1,1,eu",
        "1,a,,1,1,eu",
        "1,a,-5,1,1,eu",
        "1,a,20000000,1,1,eu",
        "1,a,1.5,1,1,eu",
        "1,a,1,inf,1,eu",
        "2,a,0,1,-3,eu",
    ]
    requests = read_requests(write(tmp_path, HEADER + "\n".join(rows) + "\n"))
    assert len(requests) == 2
    assert requests.unusable_by_reason == {
        "t_s missing or not a number": 2,
        "t_s infinite": 1,
        "t_s negative": 1,
        "t_s beyond ten years (write seconds from the start of the file)": 1,
        "service missing": 1,
        "input_tokens missing or not a number": 1,
        "input_tokens negative": 1,
        "input_tokens above 10000000": 1,
        "input_tokens not a whole number": 1,
        "output_tokens above 10000000": 1,
    }
    assert requests.blanked_by_reason == {"latency_s negative or infinite": 1}
    assert math.isnan(requests.latency_s[1])


def test_a_truncated_parquet_file_is_one_clear_error(tmp_path: Path) -> None:
    """A cut file says its name and that it cannot be read."""
    path = tmp_path / "r.parquet"
    pd.DataFrame({"t_s": [0.0] * 1000}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"r\.parquet: not a complete Parquet file"):
        read_requests(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.csv", "", "is empty"),
        ("r.csv", HEADER, "no row in the file, only its header"),
        ("r.csv", "t_s,service,input_tokens\n1,a,1\n", "needs the column output_tokens"),
        ("r.csv", HEADER + "1,a,1,1,1,eu\n1,a,1,1,1,eu,what,is,this\n", "line 3"),
        ("r.csv", HEADER + "never,a,1,1,1,eu\n", "all 1 rows are unusable.*t_s missing or not a number"),
        ("r.csv", HEADER + "1,a,1,1,1,eu\n2,a,1", r"ends in the middle of its last row \(3 of 6 columns\)"),
        (
            "r.csv",
            "t_s,service,input_tokens,output_tokens\n1,a,True,1\n",
            "all 1 rows are unusable.*input_tokens = True",
        ),
        ("r.parquet", "not parquet", "not a complete Parquet file"),
        ("r.csv.gz", "not gzip", "cannot be read"),
        ("r.xlsx", "x", "read from a .csv or .parquet file; .xlsx is neither"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_error(tmp_path: Path, name: str, content: str, says: str) -> None:
    """The error names the file and what is wrong with it."""
    with pytest.raises(InputError, match=says) as raised:
        read_requests(write(tmp_path, content, name))
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_files_folders_and_binary_are_clear_errors(tmp_path: Path) -> None:
    """No such file, a folder, bytes that are no text: each is named; calendar times are read."""
    with pytest.raises(InputError, match="no such file"):
        read_requests(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_requests(tmp_path / "folder.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x01,\x80\n")
    with pytest.raises(InputError, match=r"bytes\.csv"):
        read_requests(tmp_path / "bytes.csv")
    dates = pd.DataFrame(
        {"t_s": pd.to_datetime(["2024-01-01"]), "service": ["a"], "input_tokens": [1], "output_tokens": [1]}
    )
    dates.to_parquet(tmp_path / "dates.parquet")
    assert read_requests(tmp_path / "dates.parquet").t_s.tolist() == [0.0], "dates count from the first"


def small(count: int = 1000) -> Requests:
    """Two services in turn, two requests per second; every column tells the row."""
    tokens = np.arange(count)
    return Requests(
        np.arange(count) / 2, tokens % 2, ("a", "b"), tokens, tokens, np.full(count, np.nan), {"row": tokens}
    )


def test_thinning_keeps_the_share_and_repeats_with_the_seed() -> None:
    """The same generator keeps the same requests, about the share asked for, whole rows at a time."""
    kept, again = (thin(small(), 0.3, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(kept.t_s, again.t_s)
    assert 240 <= len(kept) <= 360
    assert np.array_equal(kept.extra["row"], kept.input_tokens)
    assert len(thin(small(), 1.0, np.random.default_rng(7))) == 1000


@pytest.mark.parametrize("rate_scale", [0.0, -1.0, 1.5, math.nan])
def test_thinning_refuses_a_share_that_is_none(rate_scale: float) -> None:
    """Only shares above zero and up to one are accepted."""
    with pytest.raises(InputError, match="rate-scale"):
        thin(small(), rate_scale, np.random.default_rng(7))


def test_an_unknown_service_is_refused_with_the_known_ones() -> None:
    """Asking for a service without requests names those that have some."""
    with pytest.raises(InputError, match=r"'c' has no requests.*a, b"):
        small().arrivals("c")


def test_listed_arrivals_are_taken_once() -> None:
    """Each request comes in the first call whose time reaches it."""
    source = ListedArrivals(Arrivals(np.array([0.0, 1.0, 1.0, 3.0]), np.arange(4), np.arange(4)))
    assert [source.upto(t).input_tokens.tolist() for t in (0.0, 1.0, 1.0, 9.0)] == [[0], [1, 2], [], [3]]


# --- synthetic requests -------------------------------------------------------------------------

CALM = RequestShape(
    daily=(0.0, 0.0, 0.0, 0.0),
    noise_sd=0.0,
    noise_corr=0.0,
    gap_cv=2.0,
    input_log_mean=6.0,
    input_log_sd=0.5,
    input_max=100_000,
    output_log_mean=5.0,
    output_log_sd=1.0,
    output_max=100_000,
)


def test_gaps_and_tokens_have_the_distributions_asked_for() -> None:
    """Rate, gap CV, and mean and deviation of the log tokens come out as put in."""
    load = ServiceLoad(name="chat", mean_rps=5.0, shape=CALM)
    drawn = SyntheticArrivals(np.random.default_rng(1), load, 40_000.0).upto(40_000.0)
    gaps_s = np.diff(drawn.t_s)
    assert len(drawn.t_s) / 40_000 == pytest.approx(5.0, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(2.0, rel=0.03)
    assert np.log(drawn.input_tokens).mean() == pytest.approx(6.0, abs=0.01)
    assert np.log(drawn.output_tokens).std() == pytest.approx(1.0, abs=0.02)


def test_a_rare_service_keeps_its_rate() -> None:
    """Gaps longer than a period are carried over, so that one request in ten minutes stays one."""
    load = ServiceLoad(name="rare", mean_rps=1 / 600, shape=CALM)
    drawn = SyntheticArrivals(np.random.default_rng(8), load, 3e6).upto(3e6)
    assert len(drawn.t_s) == pytest.approx(5000, rel=0.1)


def test_the_daily_peak_is_where_it_is_asked_for() -> None:
    """Over ten days the busiest hours surround `peak_at_s`, and the mean rate is kept."""
    load = ServiceLoad(name="chat", mean_rps=2.0, shape=SHAPES["m-small"], swing=2.0, peak_at_s=15 * 3600.0)
    t_s = SyntheticArrivals(np.random.default_rng(2), load, 10 * DAY_S).upto(10 * DAY_S).t_s
    hours = np.bincount((t_s % DAY_S // 3600).astype(int), minlength=24)
    assert int(hours.argmax()) in (13, 14, 15, 16)
    assert hours.max() > 2 * hours.min()
    assert len(t_s) / (10 * DAY_S) == pytest.approx(2.0, rel=0.15)


def test_a_service_keeps_its_requests_when_others_come() -> None:
    """Requests depend on the seed and the service's own name; all are sorted and inside the horizon."""
    one, two = ServiceLoad(name="one", mean_rps=1.0), ServiceLoad(name="two", mean_rps=2.0)
    alone = generate_requests(np.random.default_rng(3), [one], 5000.0)
    both = generate_requests(np.random.default_rng(3), [two, one], 5000.0)
    for left, right in zip(alone.arrivals("one"), both.arrivals("one"), strict=True):
        assert np.array_equal(left, right)
    assert (np.diff(both.t_s) >= 0).all()
    assert both.t_s[-1] <= 5000.0
    assert len(generate_requests(np.random.default_rng(3), [], 10.0)) == 0


def test_loads_that_cannot_be_are_refused() -> None:
    """Twice the same name, a rate or a horizon that is no number: each is named."""
    rng = np.random.default_rng(4)
    with pytest.raises(InputError, match="'a' is named twice"):
        generate_requests(rng, [ServiceLoad(name="a", mean_rps=1.0)] * 2, 10.0)
    for rate, horizon_s, name in (
        (math.nan, 10.0, "mean_rps"),
        (-1.0, 10.0, "mean_rps"),
        (1.0, math.inf, "horizon_s"),
    ):
        with pytest.raises(InputError, match=name):
            SyntheticArrivals(rng, ServiceLoad(name="a", mean_rps=rate), horizon_s)


def fit_script() -> ModuleType:
    """The script by its path, as a module."""
    spec = importlib.util.spec_from_file_location("fit_requests", ROOT / "scripts" / "fit_requests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_constants_are_those_that_the_script_prints(
    shared_data: Path | None, ran_on: Callable[[str], None]
) -> None:
    """`SHAPES` equals the fit to the traces to three decimals; without them, a fit finds what was drawn."""
    script = fit_script()
    if shared_data is None:
        ran_on("synthetic")
        tokens = np.exp(np.random.default_rng(5).normal(6.0, 0.5, 20_000))
        assert script.fit_log_normal(tokens)[:2] == pytest.approx((6.0, 0.5), abs=0.02)
        return
    ran_on("servegen_2025, azure_llm_2023, mooncake_2025")
    fitted = script.fit_all(shared_data)
    assert fitted.keys() == SHAPES.keys()
    for name, shape in SHAPES.items():
        for column in RequestShape.__dataclass_fields__:
            assert getattr(shape, column) == pytest.approx(getattr(fitted[name], column), abs=6e-4), (
                name,
                column,
            )


def test_the_real_traces_are_read_whole(
    shared_data: Path | None, ran_on: Callable[[str], None], tmp_path: Path
) -> None:
    """Azure and Mooncake requests lose no row; without them, a written file loses none either."""
    if shared_data is None:
        ran_on("synthetic")
        made = generate_requests(np.random.default_rng(6), [ServiceLoad(name="a", mean_rps=1.0)], 2000.0)
        columns = {name: getattr(made, name) for name in ("t_s", "input_tokens", "output_tokens")}
        pd.DataFrame({**columns, "service": "a"}).to_parquet(tmp_path / "made.parquet")
        assert np.array_equal(read_requests(tmp_path / "made.parquet").t_s, made.t_s)
        return
    ran_on("azure_llm_2023, mooncake_2025")
    for path, count in (
        ("azure_llm_2023/requests_conv", 19_366),
        ("mooncake_2025/requests_conversation", 12_031),
    ):
        requests = read_requests(shared_data / f"{path}.parquet")
        assert (len(requests), requests.unusable_by_reason) == (count, {})
    assert "prefix_hit_blocks" in requests.extra
