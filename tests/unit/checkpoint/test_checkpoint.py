"""The helper of training programs, without a cluster."""

from __future__ import annotations

import ast
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autopilot import checkpoint
from autopilot.checkpoint import ACK, REQUEST, Trainer, read_annotations, read_request
from autopilot.contract import LAST_CHECKPOINT
from autopilot.contract.annotations import BUSY, CHECKPOINT_ACK, CHECKPOINT_REQUEST, MODEL_FLOPS, PAUSED, STEP
from autopilot.contract.annotations import HEARTBEAT as BEAT
from benchmarks.checkpoint_step import Clock
from tests.kits.podinfo_kit import annotations_text, request_text, write_volume
from tests.kits.training_kit import own_sigterm
from tests.tidy.tree import ROOT

SOURCE = ROOT / "autopilot" / "checkpoint.py"


@pytest.fixture
def clock() -> Clock:
    """A time that the test moves."""
    return Clock()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """The mounted volume; the test writes it."""
    return tmp_path / "podinfo"


@pytest.fixture
def job(volume: Path, tmp_path: Path, clock: Clock) -> Trainer:
    """The helper in a pod without an API server."""
    settings = {
        "GPU_AUTOPILOT_ANNOTATIONS": str(volume / "annotations"),
        "GPU_AUTOPILOT_METRICS_FILE": str(tmp_path / "job.prom"),
    }
    return Trainer(settings, clock)


@pytest.fixture
def sigterm() -> Iterator[None]:
    """The handler of SIGTERM is as it was, afterwards."""
    with own_sigterm():
        yield


def _ask(volume: Path, text: str, **more: str) -> None:
    write_volume(volume, {"annotations": annotations_text({REQUEST: text, **more})})


def test_it_is_one_file_that_needs_the_standard_library_only(tmp_path: Path) -> None:
    """A copy under another name is imported without any package, and is valid for Python 3.9."""
    shutil.copy(SOURCE, tmp_path / "copied.py")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import copied; "
        "print(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'copied'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "['__main__']", done.stderr
    ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_the_names_are_those_of_the_controller() -> None:
    """One file cannot import them, so they are compared."""
    assert (checkpoint.REQUEST, checkpoint.ACK) == (CHECKPOINT_REQUEST, CHECKPOINT_ACK)
    assert (checkpoint.HEARTBEAT, checkpoint.MODEL_FLOPS) == (BEAT, MODEL_FLOPS)
    assert (checkpoint.STEP, checkpoint.PAUSED, checkpoint.BUSY) == (STEP, PAUSED, BUSY)
    assert checkpoint.PREFIX + LAST_CHECKPOINT == checkpoint.LAST_CHECKPOINT


def test_annotations_are_read_as_the_kubelet_writes_them() -> None:
    """Quotes, backslashes, line breaks, other alphabets and control characters come back unchanged."""
    values = {
        "a/b": '{"id": "x\\y"}',
        "lines": "one\ntwo\r\tthree",
        "odd": '\x00\x7f\u200b\u00e9 \U000e0001="',
        "none": "",
    }
    assert read_annotations(annotations_text(values)) == values
    assert read_annotations('broken\na="1"\nb="unfinished') == {"a": "1"}


@pytest.mark.parametrize(
    "deadline", ["1000", '"1970-01-01T00:16:40Z"', '"1970-01-01T01:16:40+01:00"', '"1970-01-01T00:16:40"']
)
def test_a_deadline_is_seconds_or_a_time(deadline: str) -> None:
    """Each form is the same moment."""
    assert read_request(f'{{"id": "a", "deadline": {deadline}}}').deadline_s == 1000.0


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"id": ""}', '{"id": 3}', '{"id": "a", "deadline": "soon"}', '{"id"']
)
def test_a_broken_request_is_no_request(
    job: Trainer, volume: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once and not answered."""
    _ask(volume, text)
    with caplog.at_level(logging.WARNING):
        assert not job.should_checkpoint()
        assert not job.should_checkpoint()
    told = [record.message for record in caplog.records if "is ignored" in record.message]
    assert len(told) == (1 if text else 0)


def test_a_request_is_answered_once(job: Trainer, volume: Path, clock: Clock, tmp_path: Path) -> None:
    """An absent file is no request; one that appears counts until it is acknowledged; another id is another request."""
    assert not job.should_checkpoint()
    _ask(volume, request_text("one", 1300.0))
    assert not job.should_checkpoint(), "it looks once a second"
    clock.at_s += 1.0
    assert job.should_checkpoint()
    assert job.should_checkpoint(), "until it is acknowledged"
    assert not job.acknowledge(7, "/data/seven"), "there is no API server"
    assert not job.should_checkpoint()
    assert 'gpu_autopilot_checkpoint_step{request="one",path="/data/seven"} 7' in (tmp_path / "job.prom").read_text()
    clock.at_s += 60.0
    _ask(volume, request_text("two", 1400.0))
    assert job.should_checkpoint()


def test_a_later_checkpoint_does_not_make_a_request_wait_again(
    job: Trainer, volume: Path, clock: Clock, tmp_path: Path, sigterm: None
) -> None:
    """The file shows an answered request for a while. The metric names it as long as no newer one is answered."""
    _ask(volume, request_text("one", 1300.0))
    job.acknowledge(7, "/data/seven")
    job.acknowledge(8, "/data/eight")
    assert not job.should_checkpoint()
    assert 'gpu_autopilot_checkpoint_step{request="one",path="/data/eight"} 8' in (tmp_path / "job.prom").read_text()
    clock.at_s += 60.0
    _ask(volume, request_text("two", 1400.0))
    job.acknowledge(9, "/data/nine")
    clock.at_s += 60.0
    _ask(volume, request_text("one", 1500.0))
    assert not job.should_checkpoint(), "an old file that comes back"
    job.watch_sigterm(grace_s=60.0)
    os.kill(os.getpid(), signal.SIGTERM)
    job.heartbeat(10)
    assert job.should_checkpoint()
    job.acknowledge(10, "/data/ten")
    assert job.should_stop(), "one checkpoint is enough"


def test_a_refresh_that_is_half_done_changes_nothing(job: Trainer, volume: Path, clock: Clock) -> None:
    """While the link is away, or names a folder that is gone, the request stands; withdrawn, it does not."""
    _ask(volume, request_text("one", 1300.0))
    assert job.should_checkpoint()
    (volume / "..data").unlink()
    clock.at_s += 5.0
    assert job.should_checkpoint()
    write_volume(volume, {"annotations": annotations_text({"other": "1"})})
    clock.at_s += 5.0
    assert not job.should_checkpoint()


def test_a_volume_may_show_the_annotation_alone(job: Trainer, volume: Path) -> None:
    """Then the file is the value."""
    write_volume(volume, {"annotations": request_text("one", 1300.0)})
    assert job.request() == checkpoint.Request("one", 1300.0)


def test_what_was_given_up_is_not_answered(job: Trainer, volume: Path, clock: Clock) -> None:
    """A deadline may have passed by ten minutes; a container that starts again finds its acknowledgement."""
    clock.at_s = 1500.0
    _ask(volume, request_text("one", 1000.0))
    assert job.should_checkpoint()
    clock.at_s = 1601.0
    assert not job.should_checkpoint()
    _ask(volume, request_text("two", 9000.0), **{ACK: json.dumps({"id": "two", "step": 1, "path": "p", "at": 1.0})})
    clock.at_s += 1.0
    assert not job.should_checkpoint()


def test_sigterm_asks_for_progress_that_is_not_saved(job: Trainer, clock: Clock, sigterm: None) -> None:
    """It counts while there are steps since the last checkpoint, and while the grace suffices for a save."""
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
    job.watch_sigterm(grace_s=60.0)
    job.heartbeat(3)
    assert not job.should_checkpoint()
    assert not job.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not job.should_stop(), "step 3 is not saved: SIGTERM may come after the loop asked for a checkpoint"
    assert calls == [signal.SIGTERM], "the handler of before is called"
    assert job.should_checkpoint()
    clock.at_s += 25.0
    assert job.grace_left_s() == 35.0
    job.acknowledge(3, "p")
    assert not job.should_checkpoint(), "step 3 is saved"
    assert job.should_stop()
    job.heartbeat(4)
    assert job.should_checkpoint()
    clock.at_s += 11.0
    assert not job.should_checkpoint(), "24 s are left and the last save took 25 s"
    assert job.should_stop()


def test_heartbeats_are_written_once_a_minute(job: Trainer, clock: Clock, tmp_path: Path) -> None:
    """The file has the newest step of each minute."""
    for step in range(90):
        job.heartbeat(step)
        clock.at_s += 1.0
    assert "gpu_autopilot_heartbeat_step 60" in (tmp_path / "job.prom").read_text()
    assert "gpu_autopilot_heartbeat_step 89" in job.metrics()


def test_the_hook_takes_requests(job: Trainer) -> None:
    """With the token: 202, another request meanwhile 409, a broken one 400; without it 401."""
    server = job.serve(0, token="secret", host="127.0.0.1")
    port = server.server_address[1]

    def post(body: str, token: str = "secret", path: str = "checkpoint") -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body.encode(), method="POST")
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    try:
        assert post(request_text("one", 2000.0), "wrong") == 401
        assert not job.should_checkpoint()
        assert post("{}") == 400
        assert post(request_text("one", 2000.0)) == 202
        assert post(request_text("one", 2000.0)) == 202, "a repetition"
        assert post(request_text("two", 2000.0)) == 409
        assert post("", path="else") == 404
        assert job.should_checkpoint()
        job.acknowledge(5, 'a "path"')
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert 'gpu_autopilot_checkpoint_step{request="one",path="a \\"path\\""} 5' in answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()


def test_the_example_continues_where_sigterm_stopped_it(tmp_path: Path) -> None:
    """The model of a run that was stopped and started again is that of a run that was not."""
    command = [sys.executable, str(ROOT / "examples" / "checkpoint_training.py"), "--steps", "300", "--every", "1000"]
    whole = subprocess.run([*command, "--folder", str(tmp_path / "whole")], capture_output=True, text=True, cwd=ROOT)
    stopped = [*command, "--folder", str(tmp_path / "stopped")]
    with subprocess.Popen([*stopped, "--step-s", "0.01"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "step 20\n":
                break
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == checkpoint.EXIT_STOPPED
    assert "step 299" not in rest
    again = subprocess.run(stopped, capture_output=True, text=True, cwd=ROOT)
    assert "step 20\n" not in again.stdout
    assert again.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]


def test_a_policy_without_steps_takes_everything_else(job: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch that is refused is sent again without the step and the busy time."""
    sent = list[set[str]]()

    def annotate(values: dict[str, str]) -> str:
        sent.append(set(values))
        return "the API server answered 403: its checkpoints only" if STEP in values else ""

    monkeypatch.setattr(job._pod, "annotate", annotate)
    job.heartbeat(1, busy_s=0.4, stage=0, rank=3)
    assert job.flush()
    assert sent == [{BEAT, STEP, BUSY}, {BEAT}]
