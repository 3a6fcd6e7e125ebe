"""Reading exporter text: held against prometheus_client, and against each trap of real exporters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.dcgm import SIGNALS, Fault, Quality
from collectors import exposition
from collectors.attribution import attribute
from collectors.exposition import Frame, Scanner, parse, split_line
from tests.kits.exporter_text import BUSY, Device, render

GPU = Device("GPU-aaaa")
SLICE = Device("GPU-mig0", gi_id="1", profile="3g.40gb", values={1002: 1.0, 1003: 0.5, 1004: 0.4, 1005: 0.2, 252: 9e3})


def scan(*texts: str) -> Frame:
    """One round of these texts."""
    return Scanner().scan(texts)


def signal(frame: Frame, entity: str, name: str) -> float:
    """One value of a frame."""
    return float(frame.values[SIGNALS.index(name), list(frame.entity_ids).index(entity)])


def quality(frame: Frame, entity: str) -> Quality:
    """The quality of one entity."""
    return Quality(int(frame.quality[list(frame.entity_ids).index(entity)]))


# --- the format --------------------------------------------------------------------------------


def reference(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Samples as prometheus_client reads them."""
    return [(s.name, s.labels, s.value) for f in text_string_to_metric_families(text) for s in f.samples]


def same(ours: list[tuple[str, dict[str, str], float]], theirs: list[tuple[str, dict[str, str], float]]) -> bool:
    """Equal samples; NaN equals NaN."""
    return len(ours) == len(theirs) and all(
        a[:2] == b[:2] and (a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2])))
        for a, b in zip(ours, theirs, strict=True)
    )


VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e-7", "0"]),
)
LABELS = st.dictionaries(
    st.sampled_from(["UUID", "gpu", "pod", "namespace", "GPU_I_ID", "x_1"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n"\\{},= #'), max_size=12),
    max_size=4,
)


BOOLS = st.booleans()


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Exposition texts with odd labels, gaps and endings."""
    lines = []
    names = draw(st.lists(st.sampled_from(["m", "DCGM_FI_DEV_FB_USED", "a:b", "up"]), max_size=6))
    for place, name in enumerate(names):
        labels = draw(LABELS)
        escaped = {k: v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for k, v in labels.items()}
        inner = ",".join(f'{k}="{v}"' for k, v in escaped.items())
        comma = draw(st.sampled_from(["", ","])) if labels else ""
        bare = not labels and draw(BOOLS)
        braces = "" if bare else f"{{{inner}{comma}}}"
        gap = draw(st.sampled_from([" ", "  ", "\t"]))
        stamp = draw(st.sampled_from(["", " 1732154400000"]))
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from(["# a comment", f"# HELP {name}{place} help", "", "   "])))
        # each metric once, so that the reference does not regroup them
        lines.append(f"{name}{place}{braces}{gap}{draw(VALUES)}{stamp}")
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


@given(texts())
@example('m0{pod="a b} 5"} 1')
@example('m0{pod="\\\\"} NaN\nm1 +Inf 1732154400000')
def test_the_format_is_read_as_prometheus_client_reads_it(text: str) -> None:
    """Escapes, NaN, infinities, timestamps, comments, blanks, no last newline: the same samples."""
    assert same(list(parse(text)), reference(text))


def test_a_whole_exporter_text_is_read_as_prometheus_client_reads_it() -> None:
    """So is the text of an exporter, oddities included."""
    devices = [GPU, SLICE, GPU.but(pod="p", vgpu="1").reading({230: 79.0})]
    for text in (
        render(devices),
        render(devices, timestamps=True),
        render(devices, new_names=True, exported=True),
    ):
        gauges = text.replace(" counter\n", " gauge\n")  # the reference appends _total to counters
        assert sorted(map(repr, parse(gauges))) == sorted(map(repr, reference(gauges)))


@pytest.mark.parametrize(
    "line",
    [
        'm{a="b} 1',
        "m{a=b} 1",
        "m{a='b'} 1",
        "m",
        "m{}",
        "{} 1",
        "1m 1",
        'm{a="b"} 1 2 3',
        'm{a="b"c="d"} 1',
        "<html>",
    ],
)
def test_malformed_lines_are_refused(line: str) -> None:
    """What is no sample is not guessed at."""
    assert split_line(line) is None


def test_hostile_lines_take_no_time() -> None:
    """No line makes the expression try again and again."""
    assert split_line("m{" + 'a="' * 50_000) is None
    assert split_line("m{" + "a" * 200_000) is None
    assert split_line('m{a="' + "\\" * 100_001) is None


@given(st.integers(0, 2**32 - 1))
def test_a_known_text_is_read_as_the_first_time(seed: int) -> None:
    """The second scan, by look-up, gives what the first, by expression, gave."""
    rng = np.random.default_rng(seed)
    devices = [GPU.but(uuid=f"GPU-{k}").reading({1002: float(rng.random())}) for k in range(3)] + [SLICE]
    scanner, text = Scanner(), render(devices, timestamps=bool(rng.random() < 0.3))
    first, second = scanner.scan([text]), scanner.scan([text])
    assert list(first.entity_ids) == list(second.entity_ids)
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(first.quality, second.quality)


# --- what the numbers mean ---------------------------------------------------------------------


def test_signals_of_a_gpu() -> None:
    """Every signal has its value and unit; NVLink and PCIe are sent + received."""
    frame = scan(render([GPU]))
    assert list(frame.entity_ids) == ["GPU-aaaa"]
    assert frame.nodes == ("node-a",)
    expected = [0.62, 0.31, 0.28, 0.44, 6.75e10, 4.0e9, 61440.0, 512.5, np.nan]
    assert list(frame.values[: len(expected), 0]) == pytest.approx(expected, nan_ok=True)
    assert quality(frame, "GPU-aaaa") is Quality.SM_ACTIVE
    assert frame.extras["energy_mj"][0] == 9.1e14
    assert frame.extras["xid_code"][0] == 0.0


@pytest.mark.parametrize(
    "style",
    [
        {"new_names": True},
        {"host_label": "Hostname"},
        {"host_label": ""},
        {"exported": True},
        {"empty_pod_labels": True},
        {"timestamps": True},
    ],
)
def test_styles_of_sites_do_not_change_the_values(style: dict[str, object]) -> None:
    """New names, either host label, exported_ prefixes, empty labels, timestamps: the same numbers."""
    plain, styled = scan(render([GPU])), scan(render([GPU], **style))  # type: ignore[arg-type]
    np.testing.assert_array_equal(plain.values, styled.values)
    assert styled.nodes == (("node-a",) if style.get("host_label", "x") else ("",))


def test_exporter_1x_style() -> None:
    """Lower-case names with a `uuid` label are the same GPU."""
    frame = scan('dcgm_gpu_utilization{gpu="0",uuid="GPU-aaaa"} 50\ndcgm_fb_used{gpu="0",uuid="GPU-aaaa"} 7\n')
    assert signal(frame, "GPU-aaaa", "sm_active_ratio") == pytest.approx(0.5)
    assert signal(frame, "GPU-aaaa", "fb_used_mib") == 7.0


def test_fallback_is_tagged() -> None:
    """Without SM_ACTIVE the engine counter, without both GPU_UTIL / 100 stand in, and say so."""
    engine, util = GPU.reading({1002: None}), GPU.but(uuid="GPU-b").reading({1002: None, 1001: None})
    none = GPU.but(uuid="GPU-c").reading({1002: None, 1001: None, 203: None})
    frame = scan(render([engine, util, none]))
    assert signal(frame, "GPU-aaaa", "sm_active_ratio") == pytest.approx(0.97)
    assert quality(frame, "GPU-aaaa") == Quality.GR_ENGINE
    assert signal(frame, "GPU-b", "sm_active_ratio") == pytest.approx(0.99)
    assert quality(frame, "GPU-b") == Quality.GPU_UTIL
    assert math.isnan(signal(frame, "GPU-c", "sm_active_ratio"))
    assert quality(frame, "GPU-c") is Quality.NONE


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("140737488355328.000000", Fault.BLANK),
        ("9223372036854775794", Fault.BLANK),
        ("NaN", Fault.NAN),
        ("<<<NOT_SUPPORTED>>>", Fault.NAN),
        ("1.7", Fault.RANGE),
        ("-0.5", Fault.RANGE),
        ("+Inf", Fault.RANGE),
    ],
)
def test_refused_numbers_are_unknown_with_a_reason(written: str, fault: Fault) -> None:
    """A blank, NaN, text or impossible number is never a value and never zero."""
    frame = scan(render([GPU.reading({1005: written})]))
    assert math.isnan(signal(frame, "GPU-aaaa", "dram_active_ratio"))
    assert frame.faults == (("GPU-aaaa", "DCGM_FI_PROF_DRAM_ACTIVE", fault),)
    assert signal(frame, "GPU-aaaa", "sm_active_ratio") == pytest.approx(0.62)


def test_one_missing_half_makes_the_sum_unknown() -> None:
    """NVLink received alone is not NVLink traffic."""
    frame = scan(render([GPU.reading({1011: None})]))
    assert math.isnan(signal(frame, "GPU-aaaa", "nvlink_bytes_s"))
    assert not math.isnan(signal(frame, "GPU-aaaa", "pcie_bytes_s"))


def test_an_idle_gpu_is_not_unknown() -> None:
    """0.000001 and 0 are values."""
    frame = scan(render([GPU.reading({1002: 0.000001, 1004: 0.0})]))
    assert signal(frame, "GPU-aaaa", "sm_active_ratio") == pytest.approx(1e-6)
    assert signal(frame, "GPU-aaaa", "tensor_active_ratio") == 0.0


def test_copies_for_sharing_pods_count_once() -> None:
    """With a copy per pod and the device's own sample, the device's value stands; processes are below."""
    own = GPU.reading({252: 60000.0})
    copies = [GPU.but(pod=f"p{k}", vgpu=str(k)).reading({252: 20000.0, 203: 30.0}) for k in range(3)]
    frame = scan(render([own, *copies]))
    assert len(frame.entity_ids) == 1
    assert signal(frame, "GPU-aaaa", "fb_used_mib") == 60000.0
    assert signal(frame, "GPU-aaaa", "power_w") == 512.5


def test_two_exporters_that_report_one_gpu_count_once() -> None:
    """A second DaemonSet on the node does not double the GPU."""
    frame = scan(render([GPU], node="node-a"), render([GPU], node="node-a", host_label="Hostname"))
    assert list(frame.entity_ids) == ["GPU-aaaa"]
    assert signal(frame, "GPU-aaaa", "sm_active_ratio") == pytest.approx(0.62)


def test_per_link_samples_are_not_the_gpu() -> None:
    """A sample of one NVLink, by whichever UUID label, does not stand for the sum of links."""
    link = 'DCGM_FI_PROF_NVLINK_TX_BYTES{gpu_uuid="GPU-aaaa",UUID="GPU-aaaa",nvlink="3"} 9e13\n'
    frame = scan(render([GPU]) + link)
    assert signal(frame, "GPU-aaaa", "nvlink_bytes_s") == pytest.approx(6.75e10)


# --- MIG ---------------------------------------------------------------------------------------


def test_instances_make_their_board() -> None:
    """A cut GPU is reported as instances only; the board is their sum by compute slices."""
    other = SLICE.but(gi_id="2", profile="4g.40gb").reading({1002: 0.5, 252: 1000.0})
    frame = scan(render([SLICE, other]))
    assert sorted(frame.entity_ids) == ["GPU-mig0", "GPU-mig0/1", "GPU-mig0/2"]
    assert signal(frame, "GPU-mig0", "sm_active_ratio") == pytest.approx((3 * 1.0 + 4 * 0.5) / 7)
    assert signal(frame, "GPU-mig0", "fb_used_mib") == 10000.0
    assert signal(frame, "GPU-mig0/1", "sm_active_ratio") == 1.0
    assert quality(frame, "GPU-mig0") is Quality.SM_ACTIVE


def test_parent_and_instances_together_are_not_summed() -> None:
    """With both reported, the board keeps its own value and each instance its own."""
    parent = Device("GPU-mig0").reading({1002: 0.3})
    frame = scan(render([parent, SLICE]))
    assert signal(frame, "GPU-mig0", "sm_active_ratio") == pytest.approx(0.3)
    assert signal(frame, "GPU-mig0/1", "sm_active_ratio") == 1.0


def test_board_level_repeats_belong_to_the_board_once() -> None:
    """Power on every instance series is the board's power: not the instance's, not the sum."""
    slices = [SLICE.but(gi_id=str(k), profile="1g.10gb").reading({155: 400.0, 203: 100.0}) for k in (7, 8, 9)]
    frame = scan(render(slices))
    assert signal(frame, "GPU-mig0", "power_w") == 400.0
    assert math.isnan(signal(frame, "GPU-mig0/7", "power_w"))


def test_gpu_util_on_an_instance_says_nothing() -> None:
    """The board's GPU_UTIL repeated on an instance stands in neither for it nor for the board."""
    frame = scan(render([SLICE.reading({1002: None, 203: 100.0})]))
    assert quality(frame, "GPU-mig0/1") is Quality.NONE
    assert quality(frame, "GPU-mig0") is Quality.NONE


def test_an_instance_without_value_makes_the_board_unknown() -> None:
    """A blank instance (no compute instance yet) is not an idle one."""
    blank = SLICE.but(gi_id="2", profile="4g.40gb").reading({1002: "140737488355328.0"})
    frame = scan(render([SLICE, blank]))
    assert math.isnan(signal(frame, "GPU-mig0", "sm_active_ratio"))
    assert quality(frame, "GPU-mig0") is Quality.NONE


def test_four_slices_on_a30() -> None:
    """One of four slices is a quarter of the board."""
    frame = scan(render([SLICE.but(model="NVIDIA A30", profile="1g.6gb")]))
    assert signal(frame, "GPU-mig0", "sm_active_ratio") == pytest.approx(0.25)


def test_an_id_that_returns_with_another_profile_is_recut() -> None:
    """GPU instance ids are used again after a re-cut; the frame says whose past is void."""
    scanner = Scanner()
    assert scanner.scan([render([SLICE])]).recut == frozenset()
    assert scanner.scan([render([SLICE.but(profile="1g.10gb")])]).recut == {"GPU-mig0/1"}
    frame = scanner.scan([render([SLICE.but(profile="1g.10gb")])])
    assert frame.recut == frozenset()
    assert signal(frame, "GPU-mig0", "sm_active_ratio") == pytest.approx(1 / 7)


def test_instances_that_are_gone_are_not_in_the_frame() -> None:
    """After a re-cut the old instances neither appear nor weigh on the board."""
    scanner = Scanner()
    scanner.scan([render([SLICE, SLICE.but(gi_id="2", profile="4g.40gb")])])
    frame = scanner.scan([render([SLICE])])
    assert sorted(frame.entity_ids) == ["GPU-mig0", "GPU-mig0/1"]
    assert signal(frame, "GPU-mig0", "sm_active_ratio") == pytest.approx(3 / 7)


def test_what_exists_follows_the_reports_of_each_gpu() -> None:
    """A GPU that is reported without an instance has lost it; one that is not reported keeps what it had."""
    scanner = Scanner()
    scanner.scan([render([SLICE, SLICE.but(gi_id="2")]), render([GPU])])
    scanner.scan([render([GPU])])  # the exporter of the other node is away
    assert {each for each, *_ in scanner.there()} == {"GPU-mig0", "GPU-mig0/1", "GPU-mig0/2", "GPU-aaaa"}
    scanner.scan([render([SLICE.but(gi_id="3", profile="7g.80gb")])])
    assert {each for each, *_ in scanner.there()} == {"GPU-mig0", "GPU-mig0/3", "GPU-aaaa"}


# --- pods --------------------------------------------------------------------------------------


def owners(text: str) -> list[tuple[str, str, float, bool]]:
    """Attributions as (entity, pod, share, estimated)."""
    scanner = Scanner()
    scanner.scan([text])
    return [(a.entity_id, a.pod, round(a.share_ratio, 9), a.estimated) for a in attribute(scanner.owned())]


def test_one_pod_owns_its_gpu() -> None:
    """A GPU with one pod is wholly its own, measured."""
    assert owners(render([GPU.but(pod="train-0")])) == [("GPU-aaaa", "train-0", 1.0, False)]


def test_containers_of_one_pod_are_told_apart() -> None:
    """Each row names its container; a sidecar on the same GPU has a share of its own."""
    lines = [
        f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-a",namespace="ns",pod="p",container="{name}"}} {util}'
        for name, util in (("main", 60), ("side", 20))
    ]
    scanner = Scanner()
    scanner.scan(["\n".join(lines)])
    found = attribute(scanner.owned())
    assert [(a.pod, a.container, round(a.share_ratio, 9)) for a in found] == [("p", "main", 0.75), ("p", "side", 0.25)]


def test_exported_and_plain_labels_are_never_mixed() -> None:
    """Where exported_pod exists, `pod` names the exporter and owns nothing."""
    idle = GPU.but(uuid="GPU-idle")
    assert owners(render([GPU.but(pod="train-0"), idle], exported=True)) == [("GPU-aaaa", "train-0", 1.0, False)]


def test_empty_pod_labels_own_nothing() -> None:
    """An empty label is an absent one: busy without an owner stays visible as such."""
    assert owners(render([GPU], empty_pod_labels=True)) == []


def test_a_shared_gpu_is_split_by_use_and_marked() -> None:
    """Shares follow GPU_UTIL of the processes, else memory, and say that they are estimates."""
    pods = [GPU.but(pod=f"p{k}", vgpu=str(k)).reading({203: u, 252: m}) for k, u, m in ((0, 60.0, 1e3), (1, 20.0, 3e3))]
    assert owners(render([GPU, *pods])) == [("GPU-aaaa", "p0", 0.75, True), ("GPU-aaaa", "p1", 0.25, True)]
    idle = [pod.reading({203: 0.0}) for pod in pods]
    assert owners(render([GPU, *idle])) == [("GPU-aaaa", "p0", 0.25, True), ("GPU-aaaa", "p1", 0.75, True)]
    mute = [pod.reading({203: None, 252: None}) for pod in pods]
    assert owners(render([GPU, *mute])) == [("GPU-aaaa", "p0", 0.5, True), ("GPU-aaaa", "p1", 0.5, True)]


# --- whole rounds ------------------------------------------------------------------------------


def test_malformed_text_is_counted_by_target() -> None:
    """A target that sends a page of HTML is named with its first line; the others are read."""
    frame = scan("<html>\n<body>\n", render([GPU]))
    assert frame.malformed == {0: (2, "<html>")}
    assert list(frame.lines) == [0, len(BUSY)]


def test_pod_churn_does_not_grow_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of pods that are gone are forgotten, and the answers stay right."""
    monkeypatch.setattr(exposition, "_FEW_ROWS", 100)
    scanner = Scanner()
    for k in range(200):
        frame = scanner.scan([render([GPU.but(pod=f"pod-{k}").reading({1002: k / 200})])])
        assert signal(frame, "GPU-aaaa", "sm_active_ratio") == pytest.approx(k / 200)
    assert len(scanner._heads) <= 200
    assert [a.pod for a in attribute(scanner.owned())] == ["pod-199"]


def test_every_field_the_scanner_reads_is_in_the_vocabulary() -> None:
    """A name outside the table is passed over without a trace."""
    frame = scan('DCGM_FI_DEV_MEM_CLOCK{UUID="GPU-x"} 1980\nprocess_cpu_seconds_total 5\n')
    assert len(frame.entity_ids) == 0
    assert set(dcgm.BY_NAME) >= {"DCGM_FI_PROF_SM_ACTIVE"}
