"""Own data: files of other programs are read as they are, or refused with the fix; notes say how they were
interpreted.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.records.journal import JournalReader
from simulator.inference.requests import read_requests
from simulator.traces import parquet
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import read_jobs
from simulator.traces.own_columns import parse_columns

HEADER = "job_id,tenant,submit_s,duration_s,gpus"


def jobs_of(folder: Path, text: str | bytes, columns: str = "", name: str = "own.csv") -> JobTrace:
    """The jobs of a file with this text."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_jobs(path, columns=parse_columns(columns) if columns else {})


def refusal(folder: Path, text: str | bytes, columns: str = "", name: str = "own.csv") -> str:
    """The one message with which it is refused."""
    with pytest.raises(InputError) as caught:
        jobs_of(folder, text, columns, name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def lines(*times: str) -> str:
    """A job file with these submit times."""
    return "\n".join([HEADER, *(f"j{number},t,{time},10,1" for number, time in enumerate(times))]) + "\n"


SACCT = """JobID|User|Account|JobName|Submit|Start|End|Elapsed|Timelimit|State|AllocTRES
101|ann|lab|train|2026-03-01T10:00:00|2026-03-01T10:05:00|2026-03-02T11:05:00|1-01:00:00|2-00:00:00|COMPLETED|billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1
101.batch||lab|batch|2026-03-01T10:05:00|2026-03-01T10:05:00|2026-03-02T11:05:00|1-01:00:00||COMPLETED|cpu=8
102|ben|lab|"x"|2026-03-01T10:30:00|2026-03-01T10:30:00|2026-03-01T10:31:30|00:01:30|UNLIMITED|CANCELLED by 7|gres/gpu:a100=2,gres/gpu:h100=1
103|ben|ops|cpu|2026-03-01T11:00:00|2026-03-01T11:00:00|2026-03-01T12:00:00|01:00:00|01:00:00|FAILED|cpu=4
104|ben|ops|now|2026-03-01T11:00:00|2026-03-01T11:00:00|Unknown|05:00:00|10:00:00|RUNNING|gres/gpu=1
105|ben|ops|wait|2026-03-01T12:00:00|Unknown|Unknown|00:00:00|10:00:00|PENDING|
"""  # noqa: E501


def test_the_accounting_of_slurm_is_read_as_it_is(tmp_path: Path) -> None:
    """Steps, states, TRES, clocks and limits; what cannot be replayed is counted by its reason."""
    jobs = jobs_of(tmp_path, SACCT)
    assert jobs.job_id.tolist() == ["101", "102", "104"]
    assert jobs.tenant.tolist() == ["lab", "lab", "ops"]
    assert jobs.submit_s.tolist() == [0, 1800, 3600]
    assert jobs.duration_s.tolist() == [90_000, 90, 36_000]  # the last one runs still: to its limit
    assert jobs.gpus.tolist() == [4, 3, 1]
    assert jobs.status.tolist() == ["completed", "cancelled", "running"]
    assert jobs.limit_s.tolist()[0] == 172_800
    assert np.isnan(jobs.limit_s[1])
    assert dict(jobs.unusable_by_reason) == {"gpus is not known": 1, "no GPU requested": 1}
    said = "; ".join(jobs.notes)
    for words in (
        "GPUs are those of AllocTRES",
        "1 job step dropped",
        "2 jobs have not ended",
        "read as UTC",
        "vertical bar",
    ):
        assert words in said


@pytest.mark.parametrize(
    "times",
    [
        ("2026-01-31T09:00:00", "2026-01-31T09:01:30"),
        ("2026-01-31 09:00:00", "2026-01-31 09:01:30"),
        ("2026-01-31T09:00:00Z", "2026-01-31T10:01:30+01:00"),
        ("2026-01-31T09:00:00.250", "2026-01-31T09:01:30.900"),
        ("1769850000", "1769850090"),
        ("1769850000.5", "1769850090.9"),
        ("1769850000000", "1769850090123"),
        ("0", "90"),
    ],
)
def test_times_are_read_as_they_are_written(tmp_path: Path, times: tuple[str, str]) -> None:
    """ISO 8601 with and without a zone, seconds and milliseconds since 1970, seconds from any zero."""
    jobs = jobs_of(tmp_path, lines(*times))
    assert jobs.submit_s.tolist() == [0, 90]
    assert (jobs.start_s is None) == (times[0] == "0")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            ("2026-01-31T09:00:00", "1769850000"),
            ["line 3, column submit_s", "dates and numbers in one column", "line 2"],
        ),
        (("2026-01-31T09:00:00Z", "2026-01-31T09:00:00"), ["line 3", "with and without a zone"]),
        (("1769850000", "1769850000000"), ["line 3", "milliseconds and seconds since 1970"]),
        (
            ("1769850000000000", "1769850000000001"),
            ["line 2", "neither seconds nor milliseconds", "microseconds"],
        ),
        (
            ("31/01/2026", "01/02/2026"),
            ["line 2, column submit_s: '31/01/2026' is no time", "2026-01-31T09:00:00"],
        ),
        (("2026-01-31T09:00:00", "2026-01-32T09:00:00"), ["line 3", "is no time"]),
        (("yesterday", "today"), ["line 2", "'yesterday' is no time"]),
    ],
)
def test_times_of_two_kinds_are_refused_by_row(tmp_path: Path, times: tuple[str, str], words: list[str]) -> None:
    """One message names the row, the column and the fix."""
    said = refusal(tmp_path, lines(*times))
    for part in words:
        assert part in said


@pytest.mark.parametrize(
    "header",
    [
        "JOB_ID,Tenant,SUBMIT_S,Duration_S,GPUS",
        "Job ID,Project,Submit Time,Run-Time,Num GPUs",
        "id,account,created_at,elapsed,n_gpus",
    ],
)
def test_common_headers_are_ours(tmp_path: Path, header: str) -> None:
    """Our names in any case, and what others call the same; the notes say which."""
    jobs = jobs_of(tmp_path, f"{header}\na,lab,0,00:10:00,2\n")
    assert (jobs.job_id[0], jobs.tenant[0], jobs.duration_s[0], jobs.gpus[0]) == ("a", "lab", 600, 2)
    assert jobs.notes[0].startswith(f"columns: {header.split(',', maxsplit=1)[0]} read as job_id")


def test_a_file_in_our_format_keeps_its_other_columns(tmp_path: Path) -> None:
    """`limit` may be anything there; nothing is noted."""
    jobs = jobs_of(tmp_path, f"{HEADER},limit,state\na,t,0,10,1,80,odd\n")
    assert np.isnan(jobs.limit_s[0])
    assert set(jobs.extra) == {"limit", "state"}
    assert jobs.notes == ()


def test_columns_are_named_by_hand(tmp_path: Path) -> None:
    """Where no name is known, `--columns` says which is which; the report repeats it."""
    text = "nr,who,when,long,cards\n1,a,0,60,2\n"
    said = refusal(tmp_path, text)
    assert "needs the column job_id" in said
    assert "--columns job_id=..." in said
    jobs = jobs_of(tmp_path, text, "job_id=nr, tenant=who,submit_s=when,duration_s=long,gpus=cards")
    assert (jobs.tenant[0], jobs.gpus[0]) == ("a", 2)
    assert "cards read as gpus" in jobs.notes[0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("submit=Submit", "'submit' is none of our columns; did you mean submit_s?"),
        ("submit_s", "'submit_s' is no pair"),
        ("submit_s=a,submit_s=b", "mapped twice"),
        ("submit_s=sumbit", "has no column 'sumbit'; did you mean submit?"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path: Path, columns: str, words: str) -> None:
    """With the nearest name."""
    assert words in refusal(tmp_path, "id,team,submit,elapsed,gpus\na,t,0,10,1\n", columns)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_separators_and_encodings(tmp_path: Path, separator: str, encoding: str) -> None:
    """Comma, semicolon, tab, bar; UTF-8 with and without a mark, Latin-1."""
    text = f"{HEADER}\nä,Größe,0,10,1\n".replace(",", separator)
    jobs = jobs_of(tmp_path, text.encode(encoding))
    assert (jobs.job_id[0], jobs.tenant[0]) == ("ä", "Größe")
    assert any("Latin-1" in note for note in jobs.notes) == (encoding == "latin-1")


def test_decimal_commas(tmp_path: Path) -> None:
    """With semicolons a comma is the decimal sign, unless it may part thousands."""
    header = HEADER.replace(",", ";")
    jobs = jobs_of(tmp_path, f"{header}\na;t;0;10,5;0,5\nb;t;3;1000,25;2\n")
    assert jobs.gpu_milli.tolist() == [500, 1000]
    assert jobs.duration_s.tolist() == [10, 1000]
    said = refusal(tmp_path, f"{header}\na;t;0;1,500;1\n")
    assert "line 2, column duration_s: '1,500'" in said
    assert "decimals or thousands" in said
    assert "decimals or thousands" in refusal(tmp_path, f"{header}\na;t;0;1.500,25;1\nb;t;0;3,5;1\n")


BAD_BYTES: list[tuple[Callable[[], str | bytes], str]] = [
    (lambda: ",".join(f"c{n}" for n in range(1_000_000)) + "\n", "line 1 has more than"),
    (lambda: ",".join(f"c{n}" for n in range(5000)) + "\n1\n", "5,000 columns; at most 1,000"),
    (lambda: f"{HEADER}\n" + ",".join("1" * 1_000_000) + "\n", "line 2 has more columns than the header"),
    (lambda: f"{HEADER}\na,t,0,{'1' * 10_000},1\n", "line 2, column duration_s: '1111"),
    (lambda: f"{HEADER}\na,t,0,10,0x{'f' * 10_000}\n", "line 2, column gpus: '0xfff"),
    (lambda: f"{HEADER}\na,t,{'9' * 10_000},10,1\n", "line 2, column submit_s: '9999"),
    (lambda: f"{HEADER}\na,t\0,0,10,1\n", "line 2: a NUL byte"),
    (lambda: f'{HEADER}\na,"t,0,10,1\n' + "b,t,0,10,1\n" * 100_000, "line 2: a quote is opened and never closed"),
    (lambda: f"{HEADER}\na,t,0,10,1\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
]


@pytest.mark.parametrize("number", range(len(BAD_BYTES)))
def test_what_is_no_table_is_one_message(tmp_path: Path, number: int) -> None:
    """A million columns, numbers of ten thousand digits, NUL bytes, open quotes: refused by line."""
    make, words = BAD_BYTES[number]
    assert words in refusal(tmp_path, make())


BOUNDED = """
import resource, sys
from pathlib import Path
import numpy, pandas, pyarrow.parquet
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.records.journal import JournalReader
from simulator.inference.requests import read_requests
from simulator.traces.jobs import read_jobs
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for read in (read_jobs, read_requests):
    try:
        read(Path(sys.argv[1]))
    except InputError as error:
        print(error)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


def read_bounded(path: Path) -> tuple[list[str], int]:
    """What both readers say in a process of 30 s CPU, and the most memory in MiB that it took."""
    done = subprocess.run([sys.executable, "-c", BOUNDED, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-600:]
    *said, most = done.stdout.strip().splitlines()
    return said, int(most) // 1024


def bomb(folder: Path, kind: str) -> Path:
    """A small file that asks for about 20 GB."""
    path = folder / ("bomb.csv.gz" if kind == "gzip" else "bomb.parquet")
    if kind == "rows":
        zeros = pa.array(np.zeros(51_000_000, np.int8))
        pq.write_table(pa.table({"t_s": zeros}), path, compression="zstd")
    elif kind == "text":
        word = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 1_000_000]))
        table = pa.table({"t_s": np.arange(20_000.0), "service": word})
        pq.write_table(table, path, compression="zstd", store_schema=False)
    elif kind == "columns":
        pq.write_table(pa.table({f"c{n}": [1] for n in range(5000)}), path)
    else:
        with gzip.open(path, "wb", compresslevel=9) as file:
            row = (HEADER + "\n").encode() * 40_000
            for _ in range(150):
                file.write(row)
    assert path.stat().st_size < 3 << 20
    return path


@pytest.mark.parametrize("kind", ["rows", "text", "columns", "gzip"])
def test_a_bomb_is_one_message_within_bounds(tmp_path: Path, kind: str) -> None:
    """A small file that unpacks to gigabytes is refused at once, by either reader, without the memory it asks for."""
    path = bomb(tmp_path, kind)
    said, most_mib = read_bounded(path)
    assert len(said) == 2
    for line in said:
        assert str(path) in line
        assert "at most" in line or "such table" in line or "ending" in line
    assert most_mib < 1000


def test_an_open_quote_in_a_large_file_stays_within_bounds(tmp_path: Path) -> None:
    """A hundred megabytes behind a quote that nothing closes."""
    path = tmp_path / "own.csv"
    with path.open("wb") as file:
        file.write(f'{HEADER}\na,"t,0,10,1\n'.encode())
        for _ in range(90):
            file.write(b"b,t,0,10,1\n" * 100_000)
    said, most_mib = read_bounded(path)
    assert all("never closed" in line for line in said)
    assert most_mib < 600


def test_the_limits_of_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells, unpacked bytes as the file claims them, and as they come: each is looked at."""
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table({name: np.arange(1000.0) for name in ("a", "b", "c")}), path)
    for limit, value, words in (
        ("MOST_CELLS", 2999, "1,000 rows of 3 columns; at most 2,999 cells"),
        ("MOST_BYTES", 20_000, "when unpacked"),
        ("MOST_COLUMNS", 2, "3 columns; at most 2"),
        ("MOST_ROWS", 999, "1,000 rows; at most 999"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(parquet, limit, value)
            with pytest.raises(InputError, match=words):
                read_jobs(path)
    monkeypatch.setattr(parquet, "MOST_BYTES", 20_000)
    monkeypatch.setattr(parquet, "_check_claims", lambda *_: None)  # a file that says too little of itself
    with pytest.raises(InputError, match="when unpacked"):
        read_jobs(path)


def test_requests_are_read_likewise(tmp_path: Path) -> None:
    """Headers of others, dates, milliseconds; the first request is at 0."""
    path = tmp_path / "calls.csv"
    path.write_text(
        "TIMESTAMP;Model;ContextTokens;GeneratedTokens\n2026-01-31T09:00:00.5;chat;10;20\n2026-01-31T09:00:02;chat;1;2\n"
    )
    requests = read_requests(path)
    assert requests.t_s.tolist() == [0.0, 1.5]
    assert requests.services == ("chat",)
    assert requests.output_tokens.tolist() == [20, 2]
    assert "ContextTokens read as input_tokens" in requests.notes[0]
    path.write_text("when,what,a,b\n1769850000000,chat,1,2\n1769850001500,chat,1,2\n")
    with pytest.raises(InputError, match=r"--columns"):
        read_requests(path)
    names = parse_columns("t_s=when,service=what,input_tokens=a,output_tokens=b")
    assert read_requests(path, names).t_s.tolist() == [0.0, 1.5]


def test_dates_in_parquet(tmp_path: Path) -> None:
    """Typed times and spans, of any unit."""
    path = tmp_path / "own.parquet"
    submit = pd.to_datetime(["2026-01-31T09:00:00", "2026-01-31T09:01:30"])
    pd.DataFrame(
        {
            "JobID": [1, 2],
            "Account": ["a", "b"],
            "Submit": submit,
            "Elapsed": pd.to_timedelta([60, 90], unit="s"),
            "gpus": [1, 2],
        }
    ).to_parquet(path)
    jobs = read_jobs(path)
    assert jobs.submit_s.tolist() == [0, 90]
    assert jobs.duration_s.tolist() == [60, 90]
    assert jobs.start_s == submit[0].timestamp()


def test_plan_and_simulate_take_the_files_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both say what they understood, and the journal knows the date of the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "250")
    header = "nr|Account|Submit|Elapsed|cards"
    rows = [f"{n}|lab|2026-03-01T10:0{n}:00Z|01:00:00|8" for n in range(4)]
    Path("own.txt").write_text("\n".join([header, *rows]) + "\n")
    columns = ["--jobs", "own.txt", "--columns", "job_id=nr,gpus=cards", "--cluster", "1x8"]
    for command in (
        ["plan", *columns, "--at", "10m"],
        ["simulate", *columns, "--policy", "autopilot", "--telemetry", "off"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        assert "nr read as job_id" in said.out
        assert "cards read as gpus" in said.out
    with JournalReader(tmp_path / "state" / "gpu-autopilot" / "last.journal") as reader:
        assert reader.runs[0].description["start_s"] == pd.Timestamp("2026-03-01T10:00:00Z").timestamp()
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--columns", "gpus=cards"])
    assert "--columns: applies to a job or request file" in capsys.readouterr().err
