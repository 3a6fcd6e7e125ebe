"""Headless Chromium for the tests of the page. A page that logs an error fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PATIENCE_MS = 30_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is closed with the test; the test is skipped, with the fix, where Chromium is absent."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is absent; `make test-services` installs it")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser, allowed: tuple[str, ...] = (), **context: Any) -> Iterator[Page]:
    """A page in a context of its own. Errors that it logs and that `allowed` does not name fail the test."""
    opened = browser.new_context(**context)
    page, errors = opened.new_page(), list[str]()
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        yield page
    finally:
        opened.close()
    assert not [error for error in errors if not any(part in error for part in allowed)]


def sign_in(page: Page, url: str, token: str) -> None:
    """Open the page and sign in as a person does."""
    page.goto(url)
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()
