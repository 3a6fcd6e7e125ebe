"""Reports are written beside the training: no API server, however it behaves, keeps a step waiting."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from http.client import BadStatusLine
from pathlib import Path
from typing import Any

import pytest

from autopilot import checkpoint
from autopilot.checkpoint import LAST_CHECKPOINT, REQUEST, Trainer
from benchmarks.checkpoint_step import SERVERS, Clock, trainer_beside
from tests.kits.podinfo_kit import annotations_text, request_text
from tests.tidy.tree import ROOT


@pytest.mark.parametrize("server", SERVERS)
def test_a_training_loop_never_waits_for_the_network(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 steps with heartbeats, a request and saves; a request to the server from their thread would raise."""
    tried = threading.Event()
    training = threading.current_thread()
    opens = urllib.request.OpenerDirector.open

    def guarded(*args: Any, **more: Any) -> Any:
        assert threading.current_thread() is not training, "the training thread uses the network"
        tried.set()
        return opens(*args, **more)

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", guarded)
    clock = Clock()
    (tmp_path / "annotations").write_text(annotations_text({REQUEST: request_text("one", 2000.0)}))
    answered = 0
    with trainer_beside(server, tmp_path, clock) as job:
        began_s = time.perf_counter()
        for step in range(300):
            clock.at_s += 1.0
            job.heartbeat(step)
            if job.should_checkpoint() or step % 100 == 99:
                job.acknowledge(step, "/data")
                answered += 1
            assert not job.should_stop()
        took_s = time.perf_counter() - began_s
        assert tried.wait(5.0)
    assert answered == 4, "one on request, three at their time"
    assert took_s < 1.5, "nine reports to the slow server take 2.7 s"


class _CutOff(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise TimeoutError(size)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (urllib.error.HTTPError("", 403, "", Message(), io.BytesIO(b"no")), "the API server answered 403: no"),
        (urllib.error.HTTPError("", 500, "", Message(), _CutOff()), "the API server answered 500"),
        (BadStatusLine("SSH-2.0"), "the API server did not answer: SSH-2.0"),
        (TimeoutError("timed out"), "the API server did not answer: timed out"),
    ],
)
def test_an_answer_that_is_none_is_a_problem_with_words(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes back, the thread goes on."""

    def fails(*args: Any, **more: Any) -> Any:
        raise error

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", fails)
    with trainer_beside("refusing", tmp_path, Clock()) as job:
        assert job._pod.annotate({}) == words
        assert not job.acknowledge(1, "/one", wait_s=5.0)
        assert job._writer._thread.is_alive()


def writer_that(sent: list[dict[str, str]], problems: list[str]) -> Trainer:
    """A helper whose pod takes annotations into `sent` while there is no problem left."""
    job = Trainer({"POD_NAME": "pod"})

    def annotate(values: Mapping[str, str]) -> str:
        sent.append(dict(values))
        return problems.pop() if problems else ""

    job._pod.annotate = annotate  # type: ignore[method-assign]
    return job


def test_what_waits_is_one_value_of_each_annotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush tries once, within the pause after a failure too; the next one sends the newest values alone."""
    sent: list[dict[str, str]] = []
    problems = ["down"] * 9
    monkeypatch.setattr(checkpoint, "RETRY_S", 3600.0)
    job = writer_that(sent, problems)
    assert not job.acknowledge(1, "/one", wait_s=5.0)
    tried = len(sent)  # once more where the thread was faster than the flush
    for step in range(2, 50):
        job.acknowledge(step, "/more")
    assert len(sent) == tried <= 2, "it pauses"
    assert not job.flush()
    problems.clear()
    assert job.flush()
    assert len(sent) == tried + 2
    assert job._ack is not None
    assert sent[-1][LAST_CHECKPOINT] == pytest.approx(f"{job._ack.at:.3f}")
    assert job.acknowledge(50, "/last", wait_s=5.0)
    assert len(sent) == tried + 3


def test_the_answer_to_a_request_ends_the_pause() -> None:
    """Other reports wait until it is over; an answer is what somebody waits for."""
    sent: list[dict[str, str]] = []
    job = writer_that(sent, ["down"])
    job.acknowledge(1, "/one", wait_s=5.0)
    assert job.post(checkpoint.Request("now"))
    began_s = time.perf_counter()
    assert job.acknowledge(2, "/two", wait_s=5.0)
    assert time.perf_counter() - began_s < checkpoint.RETRY_S
    assert checkpoint.ACK in sent[-1]


def test_the_warning_names_a_file_of_metrics_only_where_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one nothing has the report."""
    file = tmp_path / "job.prom"
    for settings in ({}, {"GPU_AUTOPILOT_METRICS_FILE": str(file)}):
        job = Trainer(settings)
        job.acknowledge(1, "/one", wait_s=5.0)
        job._writer._queue.clear()
    told = [record.message for record in caplog.records if "cannot annotate" in record.message]
    assert [message.endswith(f"; {file} has it") for message in told] == [False, True]


def test_the_last_report_is_written_when_the_process_ends(tmp_path: Path) -> None:
    """A program that ends right after its save is not cut off."""
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from autopilot import checkpoint
job = checkpoint.trainer()
def annotate(values):
    time.sleep(0.2)
    print(sorted(values))
    return ""
job._pod.annotate = annotate
job.acknowledge(7, "/seven")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert checkpoint.LAST_CHECKPOINT in done.stdout, done.stderr
