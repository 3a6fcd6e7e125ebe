"""The status page in a real browser, against a service that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kits.browser import chromium, page_of, sign_in
from tests.kits.oidc_kit import GROUPS, SECRET, provider
from tests.service.kit import APPROVE, free_port, poll, service, settings, write_yaml

WAITING = {
    "name": "waiting",
    "description": "Jobs that wait from the first second on.",
    "seed": 1,
    "horizon": "2h",
    "cluster": "2x8",
    "jobs": {
        "groups": [
            {
                "kind": "train",
                "count": 6,
                "tenants": ["vision"],
                "gpus": [2],
                "duration": "1h",
                "from": "0s",
                "to": "1s",
            }
        ]
    },
    "physics": "charged",
    "telemetry": "windowed",
    "policies": ["autopilot"],
}
SPEED = 5
"""Slow enough that a state lasts while a person decides."""


def test_a_person_approves_a_recommendation_and_sees_it_carried_out(tmp_path: Path) -> None:
    """Sign in, read, approve by clicks; the work starts, the card goes, and nothing is stored that scripts can read."""
    policy = write_yaml(tmp_path / "policy.yaml", APPROVE)
    given = settings(tmp_path / "state", policy=str(policy))
    given["simulation"] = {"scenario": str(write_yaml(tmp_path / "waiting.yaml", WAITING)), "speed": SPEED}
    with (
        service(tmp_path, given) as running,
        chromium() as browser,
        page_of(browser, allowed=("409", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")) as page,
    ):
        sign_in(page, running.url, running.token)
        assert running.token not in page.evaluate("document.cookie + JSON.stringify(localStorage)")
        page.get_by_role("link", name="Recommendations").click()

        def approved() -> str:
            """The name of a workload whose approval was carried out; "" where the state had changed."""
            button = page.get_by_role("button", name="Approve").first
            button.wait_for()
            button.click()
            dialog = page.get_by_role("dialog")
            title = str(dialog.get_by_role("heading").inner_text())
            several = dialog.get_by_text("These are ")
            first = str(several.inner_text()).split()[2].strip(",.") if several.count() else ""
            dialog.get_by_role("button", name="Approve").click()
            dialog.get_by_role("button", name="Close").wait_for()
            result = dialog.get_by_role("status").inner_text()
            dialog.get_by_role("button", name="Close").click()
            changed = "no longer what was shown" in result or "was not approved" in result
            assert changed or "arried out" in result, result
            return "" if changed else first or title.removesuffix("?").rpartition(" ")[2]

        workload = poll(approved, "an approval is carried out")
        assert workload in {
            each["workload"] for each in running.ask("/api/v1/decisions?answer=accepted").json()["decisions"]
        }
        page.locator("li.rec:not(.gone) h2, li.rec:not(.gone) summary", has_text=workload).wait_for(state="detached")

        def started() -> bool:
            """Whether its story says so: the approved start may wait for work that ends in some seconds."""
            lines = running.ask(f"/api/v1/workloads/{workload}").json()["lines"]
            return bool(lines) and "pending" not in lines[0]

        poll(started, "the approved work starts")
        assert running.end() == 0
        page.get_by_text("The connection to the service is lost.").wait_for()
        assert "Traceback" not in running.log.read_text("utf-8")


def test_a_person_signs_in_at_a_provider_beside_tokens(tmp_path: Path) -> None:
    """By the link beside the token field, with name and role; a wrong token and a missing role are said in a line."""
    secret = tmp_path / "client-secret"
    secret.write_text(SECRET)
    url = f"http://127.0.0.1:{free_port()}"
    with provider() as corp, chromium() as browser, page_of(browser, allowed=("401", "403")) as page:
        oidc: dict[str, Any] = {"name": "Corp", "issuer": corp.issuer, "client_id": "autopilot"}
        oidc |= {"secret_file": str(secret), "roles": {group: role.value for group, role in GROUPS.items()}}
        given = settings(tmp_path / "state")
        given["http"] = {"listen": url.removeprefix("http://"), "public_url": url, "oidc": oidc}
        with service(tmp_path, given):
            page.goto(url)
            page.get_by_label("Token", exact=True).fill("wrong-wrong-wrong")
            page.get_by_role("button", name="Sign in").click()
            page.get_by_text("Sign-in failed: invalid token").wait_for()
            page.get_by_role("link", name="Sign in with Corp").click()
            page.get_by_text("ada (approver)").wait_for()
            assert page.url.rstrip("/") == url
            page.get_by_role("button", name="Sign out").click()
            corp.person["groups"] = []
            page.get_by_role("link", name="Sign in with Corp").click()
            page.get_by_text("ada has no role here").wait_for()
            page.get_by_role("link", name="Back to the page").click()
            page.get_by_role("link", name="Sign in with Corp").wait_for()
