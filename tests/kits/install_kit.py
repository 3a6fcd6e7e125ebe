"""docs/install.md as an operator reads it: its blocks in order, and a desk at which they are run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from textwrap import dedent
from urllib.parse import parse_qs, urlsplit

from autopilot.cli import main
from tests.unit.readiness.world import Scraped

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "docs" / "install.md"
PROMETHEUS = "http://prometheus.example:9090"
"""The address that stands for the operator's own."""


def blocks(section: str = "") -> list[str]:
    """The blocks of commands and settings of the page, or of one section, without the indentation of lists."""
    text = INSTALL.read_text("utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [dedent(each) for each in re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)]


def removal() -> list[str]:
    """The commands of "Removing it", in order."""
    return [line for block in blocks("Removing it") for line in block.splitlines()]


class Desk:
    """A folder with `deploy/`, as a checkout has it, and the operator's kubeconfig."""

    def __init__(self, folder: Path, kubeconfig: Path, kubectl: str) -> None:
        (folder / "deploy").symlink_to(ROOT / "deploy")
        self.folder = folder
        path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
        self._home = {"PATH": path, "HOME": str(kubeconfig.parent), "KUBECONFIG": str(kubeconfig)}
        self._blocks = iter(blocks())

    def take(self, begins: str) -> str:
        """The next block of the page; the test knows how it begins."""
        block = next(self._blocks)
        assert block.startswith(begins), f"docs/install.md goes on with {block!r}, and the walk with {begins!r}"
        return block

    def follow(self, begins: str, **words: str) -> str:
        """Run the next block of the page; what it printed. `words` take the place of words in capitals."""
        return self.shell(placed(self.take(begins), words))

    def shell(self, script: str) -> str:
        """What a script printed that must succeed."""
        done = self._run(script)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout

    def refused(self, script: str) -> str:
        """What a script said that must fail."""
        done = self._run(script)
        assert done.returncode != 0, f"{script} succeeded: {done.stdout}"
        return done.stderr

    def _run(self, script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-c", script]
        return subprocess.run(
            command, env=self._home, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )

    def autopilot(self, line: str) -> tuple[int, str]:
        """Exit status and output of a command of ours, in this process; the folder must be the current one."""
        _, *words = shlex.split(line, comments=True)
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            try:
                status = main(words)
            except SystemExit as ended:
                status = ended.code
        return int(status or 0), said.getvalue()


def placed(command: str, words: dict[str, str]) -> str:
    """A command with names in place of its words in capitals."""
    for word, name in words.items():
        command = re.sub(rf"\b{word}\b", name, command)
    return command


@contextmanager
def scraped(now_s: Callable[[], float]) -> Iterator[str]:
    """A Prometheus with every field of every GPU, as `autopilot check` asks it; it knows nothing else."""
    known = Scraped()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (query,) = parse_qs(urlsplit(self.path).query).get("query", [""])
            known.clock_s = now_s()
            asked = query == "time()" or query.startswith(("count by (__name__)", "max(time() - ", "count("))
            found = known.query(query) if asked else []
            rows = [{"metric": dict(each.labels), "value": [known.clock_s, str(each.value)]} for each in found]
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
