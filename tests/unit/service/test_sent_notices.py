"""Notices to owners by webhook and by mail: what they say, that each leaves once, and what a failure changes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from autopilot.app.when import When
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.printable import printable
from autopilot.records.audit.entry import Kind, parse_line
from autopilot.service import notices
from autopilot.service.notices import Notice, Notifier, open_notifier, ways_of
from autopilot.service.published import Published
from autopilot.service.record import Record
from autopilot.service.settings_notices import MailNotices, Notices, SlackNotices
from tests.kits.certificates import Authority
from tests.kits.core_world import decide, observe, with_policy
from tests.kits.idle_world import NOW_S, QUICK, idle_scene
from tests.kits.message_kit import Webhook, mail_server, webhook

PAGE = "https://autopilot.corp.net"
WAIT_S = 60.0
"""A wait that ends only where something is broken."""


class Told:
    """A notifier with what it is told of ticks, and its audit log."""

    def __init__(self, folder: Path, settings: Notices) -> None:
        self.now_s = 0.0
        folder.mkdir(exist_ok=True)
        self.record = Record(folder / "audit")
        self.notifier = Notifier(ways_of(settings), self.record, PAGE, When(1_790_000_000.0), lambda: self.now_s)
        self._last: Step | None = None

    def tick(
        self, now_s: float, kind: OutcomeKind = OutcomeKind.DONE, policy: Policy = QUICK, *, leads: bool = True
    ) -> Published:
        """A tick on a cluster with idle work, after the effects of the last one ended in this way."""
        last = self._last
        sent = () if last is None else last.instructions
        outcomes = tuple(Outcome(each.id, kind, now_s - 1.0, retryable=True) for each in sent)
        observation = replace(observe(idle_scene(), now_s), outcomes=outcomes)
        step = self._last = decide(observation, policy, ControllerMemory() if last is None else last.memory)
        made = Published(observation, step.decision, step.memory, policy, step.wake_at_s, 0.1, leads=leads)
        self.notifier.take(made)
        return made

    def given(self) -> None:
        """A notice is decided, and given by the actuator."""
        self.tick(NOW_S)
        self.tick(NOW_S + 200.0)

    def results(self) -> dict[tuple[str, ...], float]:
        """The counts that are not zero, once all has been sent."""
        self.notifier.close()
        assert not self.notifier._thread.is_alive()
        return {key: value for key, value in self.notifier.counts()["notices_total"].items() if value}

    def audited(self) -> list[tuple[str, dict[str, Any]]]:
        """Subject and facts of the notices in the audit log."""
        lines = [line for file in sorted(self.record.folder.glob("*")) for line in file.read_bytes().splitlines()]
        events = [parse_line(line + b"\n").event for line in lines]
        return [(each.subject, dict(each.facts)) for each in events if each.kind == Kind.NOTICE]


@contextmanager
def slack(folder: Path) -> Iterator[tuple[Told, Webhook]]:
    """A notifier for a webhook."""
    with webhook() as hook:
        yield Told(folder, Notices(slack=_hook(folder, hook.url))), hook


def _hook(folder: Path, url: str) -> SlackNotices:
    file = folder / "webhook"
    file.write_text(url + "\n")
    return SlackNotices(webhook_file=file)


def _mail(port: int, **more: Any) -> MailNotices:
    given: dict[str, Any] = {"starttls": False, "sender": "autopilot@corp.net", "default": "gpu@corp.net", **more}
    return MailNotices(host="127.0.0.1", port=port, **given)


def test_the_webhook_gets_what_the_notice_says_once(tmp_path: Path) -> None:
    """Work, GPUs, since when, borrowed or not, what to do and the page; later ticks repeat nothing."""
    with slack(tmp_path) as (told, hook):
        told.tick(NOW_S)
        assert hook.came.empty()  # it is decided, and not given yet
        told.tick(NOW_S + 200.0)
        assert hook.came.get(timeout=WAIT_S) == {
            "text": "*GPUs idle: w*\n"
            "w: it has done nothing for 30 min on 8 GPUs; it may be suspended with a checkpoint from 1 h after this "
            'notice on. Use the GPUs, end the work, or annotate it with gpu-autopilot.io/exclude: "true".\n'
            "Idle since 2026-09-21T16:30:00Z.\n"
            "Owner t0/ann.\n"
            "Queue a.\n"
            "The GPUs are above the guarantee of its queue.\n"
            "https://autopilot.corp.net/#/workloads"
        }
        told.tick(NOW_S + 400.0)
        assert told.results() == {("slack", "sent"): 1.0}
        assert hook.came.empty()
    assert told.audited() == [("w", {"way": "slack", "result": "sent", "to": "notices.slack", "reason": ""})]


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBSERVE, Mode.RECOMMEND, Mode.APPROVE])
def test_without_leave_of_the_mode_no_notice_leaves(tmp_path: Path, mode: Mode) -> None:
    """What is only shown, or waits for an approval, is no notice."""
    with slack(tmp_path) as (told, hook):
        for at_s in (0.0, 200.0, 400.0):
            told.tick(NOW_S + at_s, policy=with_policy(QUICK, modes={"notify_idle": mode}))
        assert told.results() == {}
        assert hook.came.empty()


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.CONFLICT])
def test_a_notice_that_was_not_given_does_not_leave(tmp_path: Path, kind: OutcomeKind) -> None:
    """Without the Event on the object no message is sent; nor by a controller that does not lead."""
    with slack(tmp_path) as (told, hook):
        told.tick(NOW_S)
        told.tick(NOW_S + 200.0, kind)
        assert told.results() == {}
        assert hook.came.empty()


def test_a_controller_that_does_not_lead_sends_nothing(tmp_path: Path) -> None:
    """The leader does."""
    with slack(tmp_path) as (told, _):
        told.tick(NOW_S, leads=False)
        told.tick(NOW_S + 200.0, leads=False)
        assert told.results() == {}


def test_a_webhook_that_fails_is_counted_without_its_secret(tmp_path: Path) -> None:
    """It is asked once, follows no redirect, and the line names status or error alone."""
    with slack(tmp_path) as (told, hook), capture_logs() as lines:
        hook.status = 307
        told.given()
        assert told.results() == {("slack", "failed"): 1.0}
        assert hook.came.qsize() == 1
    with capture_logs() as more:
        gone = Told(tmp_path / "gone", Notices(slack=_hook(tmp_path, hook.url)))
        gone.given()
        assert gone.results() == {("slack", "failed"): 1.0}
    assert lines[0]["reason"] == "OSError: the webhook answered HTTP 307"
    assert "refused" in more[0]["reason"]
    assert "secret-of-the-webhook" not in str(lines + more + told.audited() + gone.audited())


def test_words_of_tenants_mention_nobody_and_inject_nothing(tmp_path: Path) -> None:
    """Slack's markup is escaped; a header of a mail takes no second line."""
    name = "x<!channel> & <https://evil.example|see>\r\nBcc: eve@evil.example"
    notice = Notice(printable(name), (), name)
    with webhook() as hook, mail_server() as server:
        (to_slack,) = ways_of(Notices(slack=_hook(tmp_path, hook.url)))
        (to_mail,) = ways_of(Notices(mail=_mail(server.port)))
        to_slack.send(notice, "")
        to_mail.send(notice, to_mail.address(notice))
        text = hook.came.get(timeout=WAIT_S)["text"]
        assert "x&lt;!channel&gt; &amp; &lt;https:" in text
        assert "<" not in text
        mail, to, _, _ = server.came.get(timeout=WAIT_S)
        assert (to, mail["Bcc"]) == ("gpu@corp.net", None)
        assert "GPUs idle: x<!channel>" in mail["Subject"]
        with pytest.raises(ValueError, match=r"linefeed|newline|carriage return"):
            to_mail.send(Notice(name, (), ""), "gpu@corp.net")


def test_mail_goes_to_the_queue_encrypted_and_signed_in(tmp_path: Path) -> None:
    """The nearest address above the queue counts; the password leaves only behind STARTTLS."""
    authority, password = Authority(tmp_path, "ca"), tmp_path / "password"
    password.write_text("the-password")
    with mail_server(authority.sign("mail")) as server:
        settings = _mail(
            server.port,
            starttls=True,
            ca_file=authority.certificate,
            user="autopilot",
            password_file=password,
            recipients={"a": "vision@corp.net"},
        )
        told = Told(tmp_path, Notices(mail=settings))
        told.given()
        mail, to, secure, user = server.came.get(timeout=WAIT_S)
        assert (to, secure, user) == ("vision@corp.net", True, "autopilot:the-password")
        assert (mail["From"], mail["Subject"]) == ("autopilot@corp.net", "GPUs idle: w")
        assert mail["Auto-Submitted"] == "auto-generated"
        assert "it has done nothing for 30 min on 8 GPUs" in mail.get_content()
        assert told.results() == {("mail", "sent"): 1.0}
    (way,) = ways_of(Notices(mail=settings))
    assert way.address(Notice("w", ("a/b", "a"), "")) == "vision@corp.net"
    assert way.address(Notice("w", ("c",), "")) == "gpu@corp.net"


def _refused(settings: MailNotices, folder: Path) -> str:
    with capture_logs() as lines:
        told = Told(folder, Notices(mail=settings))
        told.given()
        assert told.results() == {("mail", "failed"): 1.0}
    return str(lines[0]["reason"])


def test_a_mail_server_that_cannot_be_trusted_gets_nothing(tmp_path: Path) -> None:
    """No STARTTLS, a certificate of another authority, an unknown recipient, no server."""
    with mail_server() as plain, ExitStack() as stack:
        assert "STARTTLS" in _refused(_mail(plain.port, starttls=True), tmp_path / "1")
        other = stack.enter_context(mail_server(Authority(tmp_path, "own").sign("mail")))
        assert "certificate verify failed" in _refused(_mail(other.port, starttls=True), tmp_path / "2")
        plain.refuses = True
        assert "unknown user" in _refused(_mail(plain.port), tmp_path / "3")
        assert plain.came.empty()
        assert other.came.empty()
    assert "refused" in _refused(_mail(plain.port), tmp_path / "4")


def test_a_queue_without_an_address_is_counted(tmp_path: Path) -> None:
    """The line says which setting is missing."""
    with mail_server() as server, capture_logs() as lines:
        told = Told(tmp_path, Notices(mail=_mail(server.port, default=None, recipients={"b": "b@corp.net"})))
        told.given()
        assert told.results() == {("mail", "no_address"): 1.0}
        assert server.came.empty()
    assert lines[0]["reason"] == "its queue has no address; set notices.mail.recipients"


def test_a_slow_way_delays_no_tick_and_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the connection and says nothing."""
    monkeypatch.setattr(notices, "SENDS_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reason = _refused(_mail(silent.getsockname()[1]), tmp_path)
    assert "TimeoutError" in reason


class _Blocked:
    """A way that waits until it may go on."""

    name = "slack"

    def __init__(self) -> None:
        self.open = threading.Event()

    def address(self, _notice: Notice) -> str:
        """Somebody."""
        return "x"

    def send(self, _notice: Notice, _address: str) -> None:
        """Wait."""
        assert self.open.wait(WAIT_S)


def test_a_flood_is_bounded_by_the_hour_and_by_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is dropped and counted, and the loop never waits."""
    monkeypatch.setattr(notices, "MOST_AN_HOUR", 3)
    monkeypatch.setattr(notices, "MOST_WAITING", 5)
    way, now = _Blocked(), [0.0]
    notifier = Notifier((way,), Record(tmp_path / "audit"), clock_s=lambda: now[0])
    for number in range(20):
        notifier._pass(Notice(f"w{number}", (), ""))
    way.open.set()
    notifier.close()
    found = notifier.counts()["notices_total"]
    assert found["slack", "sent"] == 3.0
    assert found["slack", "dropped"] == 17.0


def test_secrets_are_read_at_the_start(tmp_path: Path) -> None:
    """A missing file, an empty one and one that is no address are one message each; without a way nothing runs."""
    assert open_notifier(Notices(), Record(tmp_path / "audit"), "", When()) is None
    with pytest.raises(InputError, match=r"notices\.slack\.webhook_file: .*absent: cannot be read"):
        ways_of(Notices(slack=SlackNotices(webhook_file=tmp_path / "absent")))
    for text, why in (("", "is empty"), ("http://hooks.corp.net/x", "not an https address")):
        with pytest.raises(InputError, match=why) as found:
            ways_of(Notices(slack=_hook(tmp_path, text)))
        assert "hooks.corp.net" not in str(found.value)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"user": "a"}, "user and password_file belong together"),
        ({"default": None}, "nothing has an address"),
        ({"default": "a@b, c@d"}, "pattern"),
        ({"sender": "a@b\nBcc: c"}, "pattern"),
        ({"host": "mail.corp.net", "user": "a", "password_file": Path("p")}, "a password needs starttls"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(more: dict[str, Any], why: str) -> None:
    """Each with what is allowed."""
    right = {"host": "127.0.0.1", "starttls": False, "sender": "a@b.net", "default": "c@d.net"}
    assert MailNotices(**right).port == 587
    with pytest.raises(ValueError, match=why):
        MailNotices(**right | more)
