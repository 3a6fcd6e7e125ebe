"""Notices to owners of idle work leave a service that runs: to a webhook and by mail, counted and in the audit log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import requests

from autopilot.records.audit.entry import Kind, parse_line
from autopilot.service.state_folder import read_note
from tests.kits.message_kit import mail_server, webhook
from tests.service.kit import poll, service, settings, write_yaml

RESTS = {
    "name": "rests",
    "description": "Two jobs whose owners are away, and work that waits for their GPUs.",
    "seed": 1,
    "horizon": "12h",
    "cluster": "2x8",
    "jobs": {
        "groups": [
            {"kind": kind, "name": name, "count": count, "tenants": [name], "gpus": [gpus], "duration": "10h"}
            | {"from": "0s", "to": "1s", "preemptible": True}
            for kind, name, count, gpus in (("hoarder", "rests", 2, 4), ("compute-training", "works", 6, 8))
        ]
    },
    "physics": "charged",
    "telemetry": "windowed",
    "policies": ["autopilot"],
}


def test_the_owner_of_idle_work_gets_the_notice_by_slack_and_mail(tmp_path: Path) -> None:
    """Each workload once, with the link to the page, and without the address of the webhook in log or audit."""
    secret = tmp_path / "webhook"
    with webhook() as hook, mail_server() as mails:
        secret.write_text(hook.url)
        mail: dict[str, Any] = {"host": "127.0.0.1", "port": mails.port, "starttls": False, "sender": "gpu@corp.net"}
        given = settings(tmp_path / "state", policy="autopilot")
        given["simulation"] = {"scenario": str(write_yaml(tmp_path / "rests.yaml", RESTS)), "speed": 600}
        given["http"]["public_url"] = "https://autopilot.corp.net"
        given["notices"] = {"slack": {"webhook_file": str(secret)}, "mail": {**mail, "default": "oncall@corp.net"}}
        with service(tmp_path, given) as running:
            text = hook.came.get(timeout=120)["text"]
            found, to, _, _ = mails.came.get(timeout=60)
            assert text.startswith(f"*{found['Subject']}*\n")
            assert to == "oncall@corp.net"
            assert "it has done nothing for " in text
            assert text.endswith("https://autopilot.corp.net/#/workloads")

            def counted() -> bool:
                url = str(read_note(running.state / "service.json")["metrics"])
                headers = {"Authorization": f"Bearer {running.token}"}
                shown = requests.get(f"{url}/metrics", headers=headers, timeout=30).text
                sent = re.findall(r'notices_total{result="sent",way="(\w+)"} [1-9]', shown)
                return set(sent) == {"slack", "mail"}

            poll(counted, "the messages are counted", 30)
            assert running.end() == 0
        log = running.log.read_text("utf-8")
        lines = b"".join(each.read_bytes() for each in running.state.rglob("audit*/*") if each.is_file()).splitlines()
        notices = [each for line in lines if (each := parse_line(line + b"\n").event).kind == Kind.NOTICE]
    assert {each.facts["way"] for each in notices} == {"slack", "mail"}
    by_slack = [each.subject for each in notices if each.facts["way"] == "slack"]
    assert len(by_slack) == len(set(by_slack))
    assert "secret-of-the-webhook" not in log + str(notices)
    assert "Traceback" not in log
