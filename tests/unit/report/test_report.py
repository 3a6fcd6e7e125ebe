from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from autopilot.report import page as page_module
from autopilot.report.charts import COLOURS, Picture, draw_all
from autopilot.report.data import (
    Heat,
    PolicyRun,
    ReportData,
    Series,
)
from autopilot.report.embedded import unpacked
from autopilot.report.html_tables import fragmentation, key_figures, use
from autopilot.report.page import render_page, write_report
from autopilot.report.plots import plots_of
from tests.kits.report_data import make_report, with_result

HOSTILE = '<b onclick=alert(1)>&"\'$x_{$</b> id="x"'
STYLE = (Path(page_module.__file__).parent / "style.css").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Elements, attributes and text of a page, with a check that what opens is closed."""

    EMPTY = frozenset({"meta", "link", "br", "input", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        self.inside.append((self.open[-1] if self.open else "", data))

    def data(self) -> list[str]:
        """The packed decisions, by part."""
        return [word for tag, word in self.inside if tag == "script" and word.isascii() and " " not in word]

    def ids(self) -> list[str]:
        return [attrs["id"] or "" for _, attrs in self.found if "id" in attrs]


@pytest.fixture(scope="module")
def data() -> ReportData:
    """Three policies, services, decisions."""
    return make_report()


@pytest.fixture(scope="module")
def page(data: ReportData) -> str:
    """The page of `data`."""
    return render_page(data)


@pytest.fixture(scope="module")
def small() -> ReportData:
    """One policy, few nodes, no services: quick to draw."""
    return make_report(("autopilot",), services=False, span_s=7200.0, nodes=2)


@pytest.fixture(scope="module")
def small_page(small: ReportData) -> str:
    """The page of `small`."""
    return render_page(small)


# --- the page -----------------------------------------------------------------------------------


def test_the_page_holds_its_sections_in_order(page: str) -> None:
    """Four tiles, what to do next, what it did and why, then pictures; the rest is folded."""
    reader = Reader(page)
    sections = [attrs["id"] for tag, attrs in reader.found if tag == "section"]
    assert reader.open == []
    assert page.count('<p class="figure">') == 4
    assert sections == [
        "next",
        "summary",
        "utilization",
        "waits",
        "latency",
        "nodes",
        "fragmentation",
        "figures",
        "reservations",
        "tenants",
        "causes",
        "use",
        "shape",
        "decisions",
        "assumed",
        "repeat",
    ]


def test_free_gpus_that_are_not_known_are_a_dash() -> None:
    """Not 0.0."""
    found = with_result(make_report(("fifo",)), "fifo", fragmentation={"pools": {"main": {"index_ratio": 0.5}}})
    assert "<td>main</td><td>-</td><td>0.500</td>" in fragmentation(found)


def test_the_index_is_shown_by_pool_and_cause(page: str) -> None:
    """A row for each policy and pool; what is unknown is a dash."""
    assert "<th scope=col>node remainder</th>" in page
    assert "<td>main</td><td>12.5</td><td>0.375</td><td>0.750</td>" in page
    assert "<td>main</td><td>3.0</td><td>-</td><td>-</td>" in page


def test_where_the_capacity_went_is_shown_beside_the_bound(page: str) -> None:
    """Each cause has its share of the capacity, or is omitted. What the bound does not use is free."""
    rows = dict(re.findall(r"<tr><th scope=row>([^<]*)</th>((?:<td>[^<]*</td>){2})</tr>", page.split('id="causes"')[1]))
    assert rows["SM active"] == "<td>40.5 %</td><td>55.0 %</td>"
    assert rows["free while work waited"] == "<td>15.0 %</td><td>0.0 %</td>"
    assert rows["free without demand"] == "<td>10.0 %</td><td>15.0 %</td>"
    assert "owner away, borrowed" in rows
    assert "owner away, within the guarantee" not in rows


def test_the_page_holds_no_address(page: str) -> None:
    """Nothing in the page names another place: no scheme, and links only to its own parts and data."""
    reader = Reader(page)
    assert not re.search(r"\w+://|@import|//[a-z]+\.", page)
    for _, attrs in reader.found:
        for key in ("href", "src", "xlink:href", "action"):
            assert (attrs.get(key) or "#").startswith(("#", "data:"))
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_ids_are_unique_and_every_reference_finds_one(page: str) -> None:
    """Pictures drawn apart do not take each other's clip paths and marks."""
    ids = Reader(page).ids()
    assert len(ids) == len(set(ids))
    embedded = {f"d-{identity}" for identity in unpacked(Reader(page).data()[0])["id"]}
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', page)) <= {*ids, *embedded}


def test_every_colour_of_a_picture_has_a_light_and_a_dark_value(page: str) -> None:
    """Inside the page no drawing keeps a light colour of its own, and each variable is defined twice."""
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    light, dark = STYLE.split("prefers-color-scheme: dark", 1)
    for name, value in COLOURS.items():
        assert not any(value in drawing for drawing in drawings)
        assert f"--{name}: {value};" in light
        assert f"--{name}: #" in dark.split("}", 1)[0]


def test_the_same_result_gives_the_same_page(small: ReportData, small_page: str) -> None:
    """A page holds no time and no random id."""
    assert render_page(small) == small_page


def test_every_text_of_the_data_is_shown_and_never_read_as_html() -> None:
    """Names of policies, jobs, tenants, services, nodes and fields, and notes, are text and nothing else."""
    base = make_report((HOSTILE, "fifo"), name=HOSTILE)
    run = base.policies[0]
    decision = dataclasses.replace(
        make_report(("autopilot",)).policies[0].decisions[0],
        why=HOSTILE,
        tenant=HOSTILE,
        id=HOSTILE,
        at=HOSTILE,
        workload=HOSTILE,
    )
    heat = dataclasses.replace(run.heat, node_ids=tuple(f"{HOSTILE}{i}" for i in range(7)))
    services = tuple(dataclasses.replace(s, name=HOSTILE + s.name) for s in run.services)
    hostile = dataclasses.replace(
        run, heat=heat, services=services, decisions=(decision,), policy_diff=((HOSTILE, HOSTILE, HOSTILE),)
    )
    data = dataclasses.replace(
        base,
        title=HOSTILE,
        command=HOSTILE,
        notes=(HOSTILE,),
        assumed={HOSTILE: HOSTILE},
        policies=(hostile, base.policies[1]),
    )
    data = with_result(data, HOSTILE, tenants={HOSTILE: {"submitted": 1}}, jobs={"unusable_by_reason": {HOSTILE: 1}})
    page = render_page(data)
    reader = Reader(page)
    assert not [tag for tag, attrs in reader.found if tag == "b" and "onclick" in attrs]
    assert "<b onclick" not in page
    assert sum(HOSTILE in word for word in reader.words) > 15


def test_what_does_not_apply_is_a_dash_and_never_zero(data: ReportData) -> None:
    """A null of the result is shown as a dash."""
    bare = with_result(data, "fifo-skip", slo=None, disruptions=None, jobs={"jct_s_mean": None})
    rows = dict(re.findall(r"<th scope=row>([^<]*)<small>.*?</small></th>(.*?)</tr>", key_figures(bare)))
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", row)[1] for name, row in rows.items()}  # of fifo-skip
    assert {cells[name] for name in ("JCT", "SLO violations", "Preemptions", "Work lost")} == {"-"}
    assert cells["Queue wait p50"] != "-"


def test_the_use_of_groups_is_sorted_by_gap_and_never_guessed(data: ReportData) -> None:
    """The largest gap comes first; what was not measured has no columns, and a missing group is a dash."""
    row = {"held_gpu_s": 7200.0, "allocation_ratio": 0.5, "hardware_ratio": 0.25, "real_utilization_ratio": 0.125}
    small, large = row | {"gap_gpu_s": 3600.0}, row | {"gap_gpu_s": 5400.0}
    seen = with_result(data, "autopilot", use={"tenant": {HOSTILE: small, "team": large}, "pool": {"main": small}})
    seen = with_result(seen, "fifo-skip", use={"tenant": {"team": small}})
    seen = with_result(seen, "sjf-skip", use=None)
    found = use(seen)
    tenants = found[: found.index("Use by pool")]
    names = re.findall(r"<tbody>.*</tbody>", tenants)[0]
    assert names.index("team") < names.index("onclick")
    assert HOSTILE not in found
    assert "sjf-skip" not in found
    assert "<td>1.5 GPU-h</td>" in names
    assert "<td>-</td>" in names
    whole = use(make_report(("fifo",)))
    assert all(f"Use by {level}" in whole for level in ("tenant", "pool", "service", "workload"))
    assert use(with_result(make_report(("fifo",)), "fifo", use=None)) == ""


def test_a_result_with_nothing_in_it_still_makes_a_page() -> None:
    """No policy, or a policy that ran nothing: a page that says so, without pictures."""
    data = make_report(("autopilot",))
    none = np.zeros(0)
    series = Series(t_s=none, allocation_ratio=none, hardware_ratio=none, pending_gpus=none, stranded_gpus=none)
    heat = Heat(t_edges_s=np.zeros(1), node_ids=(), busy_ratio=np.zeros((0, 0)))
    empty = PolicyRun(name="autopilot", result={}, series=series, waits_s=none, heat=heat)
    for policies in ((), (empty,)):
        page = render_page(dataclasses.replace(data, policies=policies))
        assert "<svg" not in page
        assert Reader(page).open == []


def test_pictures_of_unmeasured_hardware_say_so() -> None:
    """Without telemetry the first plot shows what was allocated, not idle GPUs."""
    titles = {plot.name: plot for plot in plots_of(make_report(("sjf", "fifo")))}
    assert titles["utilization"].title.startswith("Allocated GPU time")
    assert "did not measure" in titles["utilization"].reading


# --- odd but legal --------------------------------------------------------------------------------


def odd_series(length: int) -> Series:
    """Nothing allocated, nothing known."""
    unknown, zero = np.full(length, np.nan), np.zeros(length)
    return Series(
        t_s=np.arange(float(length)),
        allocation_ratio=zero,
        hardware_ratio=unknown,
        pending_gpus=zero,
        stranded_gpus=zero,
    )


@pytest.mark.parametrize("length", [1, 600])
def test_an_idle_cluster_and_an_unknown_latency_can_be_drawn(length: int) -> None:
    """All zero, all unknown, a single bin, jobs that never wait: pictures without a warning."""
    base = make_report(("autopilot", "fifo-skip"))
    unknown = np.full(length, np.nan)
    service = dataclasses.replace(
        base.policies[0].services[0],
        t_s=np.arange(float(length)),
        p99_s=unknown,
        rate_rps=unknown,
        replicas=unknown,
        late=unknown,
    )
    runs = tuple(
        dataclasses.replace(
            run,
            series=odd_series(length),
            waits_s=np.zeros(length),
            services=(service,),
            heat=dataclasses.replace(run.heat, busy_ratio=np.full_like(run.heat.busy_ratio, np.nan)),
            result={**run.result, "jobs": {"queue_wait_s_p99": 0.0}},
        )
        for run in base.policies
    )
    page = render_page(dataclasses.replace(base, policies=runs))
    assert "Almost every job starts at once under autopilot and fifo-skip" in page
    assert page.count("<svg") == 10


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def drawn_once(small: ReportData, monkeypatch: pytest.MonkeyPatch, _pictures: tuple[Picture, ...]) -> str:
    """Writing costs no drawing in the tests of files; returns the page that is written for `small`."""
    monkeypatch.setattr(page_module, "draw_all", lambda *_, **__: _pictures)
    return render_page(small)


@pytest.fixture(scope="module")
def _pictures(small: ReportData) -> tuple[Picture, ...]:
    return draw_all(plots_of(small), files=True)


def test_each_picture_is_written_as_svg_and_png_beside_the_page(
    small: ReportData, small_page: str, tmp_path: Path
) -> None:
    """The folder holds the page and its pictures, all of them readable, and nothing else."""
    page = write_report(small, tmp_path / "new" / "report")
    folder = page.parent
    names = ["fragmentation", "nodes", "utilization", "waits"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["index.html", *(f"{n}.{kind}" for n in names for kind in ("svg", "png"))]
    )
    for name in names:
        assert ET.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.read_text(encoding="utf-8") == small_page


@pytest.mark.usefixtures("drawn_once")
def test_a_second_report_replaces_the_first_and_leaves_other_files(small: ReportData, tmp_path: Path) -> None:
    """Writing again into the same folder brings the new page and keeps what the user put there."""
    (tmp_path / "notes.txt").write_text("mine")
    write_report(small, tmp_path)
    write_report(dataclasses.replace(small, title="Second"), tmp_path)
    assert "<title>Second</title>" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".partial-*"))


@pytest.mark.usefixtures("drawn_once")
def test_a_folder_that_is_a_file_is_one_clear_error(small: ReportData, tmp_path: Path) -> None:
    """The message names the folder and the fix, and the file stays as it was."""
    blocked = tmp_path / "taken"
    blocked.write_text("mine")
    with pytest.raises(InputError, match=r"taken.*name a folder with write access"):
        write_report(small, blocked)
    assert blocked.read_text() == "mine"


@pytest.mark.parametrize("fails_at", ["write", "move"])
def test_a_full_disk_leaves_nothing_half_written(
    small: ReportData, drawn_once: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """When the disk fills up, a folder that was not there is gone again and an old page is whole."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_report(small, tmp_path / "old")
    monkeypatch.setattr(Path, "write_bytes" if fails_at == "write" else "replace", full)
    for folder in ("old", "new"):
        with pytest.raises(InputError, match="No space left on device"):
            write_report(small, tmp_path / folder)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "old" / "index.html").read_text(encoding="utf-8") == drawn_once
    assert not list((tmp_path / "old").glob(".partial-*"))


@pytest.mark.usefixtures("drawn_once")
def test_an_interruption_leaves_nothing_half_written(
    small: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while files are written passes on, and the folder is gone again."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(small, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("drawn_once")
def test_pictures_that_the_new_result_does_not_have_are_taken_away(small: ReportData, tmp_path: Path) -> None:
    """A latency picture of an earlier run does not stay beside a page that does not show it."""
    (tmp_path / "latency.svg").write_text("old")
    write_report(small, tmp_path)
    assert not (tmp_path / "latency.svg").exists()


def test_the_command_line_can_name_the_report_without_loading_the_drawing_library() -> None:
    """Importing the page loads neither matplotlib nor pandas; they are imported where they draw."""
    import subprocess
    import sys

    script = "import sys, autopilot.report.page; print(sorted({'matplotlib', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"
