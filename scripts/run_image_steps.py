"""Run the build stage of the Dockerfile without Docker, and start what it installed.

    python scripts/run_image_steps.py FOLDER [PYTHON]

The steps COPY, WORKDIR and RUN of the first stage run in FOLDER, which must be empty: `/src` and `/opt` of the image
are folders in it. Started by root, they run as the user of the image, who cannot write to the checkout. Then the
installed tree loses its write permission, and `autopilot` starts from it as the same user. FOLDER/opt/gpu-autopilot
stays for `make sbom`. PYTHON is a Python 3.11 that the user may run, with the module venv; default: this one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = "opt/gpu-autopilot"
STARTS = (("autopilot", "--version"), ("autopilot", "run", "--help"), ("python", "-c", "import collectors, models"))


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Instruction and argument of each step of the first stage."""
    stages = 0
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        stages += word == "FROM"
        if stages > 1:
            return
        yield word, rest.strip()


def user_of(text: str) -> int:
    """The number of the image's user. Raises ValueError if the Dockerfile names none."""
    found = re.search(r"^USER (\d+)", text, re.MULTILINE)
    if found is None:
        raise ValueError("the Dockerfile has no USER with a number")
    return int(found[1])


class Tree:
    """A folder in place of the root of the image."""

    def __init__(self, root: Path, user: int, python: str) -> None:
        self.root, self.here = root, root
        self._user = user if os.geteuid() == 0 else None
        tools = root / "tools"
        tools.mkdir()
        (tools / "python").symlink_to(python)
        (root / "tmp").mkdir()
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))}
        self._env = kept | {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(root / "tmp"), "TMPDIR": str(root / "tmp")}
        self.give()

    def give(self) -> None:
        """Let the user own the present files."""
        if self._user is not None:
            for path in (self.root, *self.root.rglob("*")):
                os.chown(path, self._user, self._user, follow_symlinks=False)

    def step(self, word: str, rest: str) -> None:
        """One step of the Dockerfile. Raises CalledProcessError, OSError."""
        if word == "WORKDIR":
            self.here = self.root / rest.lstrip("/")
            self.here.mkdir(parents=True)
            (self.root / INSTALLED).parent.mkdir(exist_ok=True)
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                _copy(ROOT / source, self.here / target)
        elif word == "RUN":
            self.run(["sh", "-ec", rest.replace(f"/{INSTALLED}", str(self.root / INSTALLED))])
        self.give()

    def run(self, command: Sequence[str], **env: str) -> None:
        """A command as the user of the image. Raises CalledProcessError."""
        extra: list[int] | None = [] if self._user is not None else None
        subprocess.run(
            command,
            cwd=self.here,
            env=self._env | env,
            check=True,
            user=self._user,
            group=self._user,
            extra_groups=extra,
        )

    def start(self) -> None:
        """Start the installed commands from an unwritable tree, and see that nothing in it changed."""
        tree = self.root / INSTALLED
        for path in (tree, *tree.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o555)
                if self._user is not None:
                    os.chown(path, 0, 0)
        before = _state(tree)
        self.here = self.root / "tmp"
        for name, *arguments in STARTS:
            self.run([str(tree / "bin" / name), *arguments], PYTHONDONTWRITEBYTECODE="1", MPLCONFIGDIR=str(self.here))
        if _state(tree) != before:
            raise OSError(f"starting the commands changed {tree}")
        for path in (tree, *tree.rglob("*")):  # so that the caller can delete it
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / source.name)


def _state(tree: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in tree.rglob("*")}


def main(arguments: Sequence[str]) -> int:
    """Run the steps; the exit status."""
    if len(arguments) not in {1, 2}:
        print(__doc__)
        return 2
    root = Path(arguments[0]).absolute()
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        print(f"{root} is not empty; name an empty folder", file=sys.stderr)
        return 2
    text = (ROOT / "Dockerfile").read_text("utf-8")
    python = arguments[1] if len(arguments) > 1 else getattr(sys, "_base_executable", sys.executable)
    tree = Tree(root, user_of(text), python)
    try:
        for word, rest in steps(text):
            print(f"-- {word} {rest[:100]}", flush=True)
            tree.step(word, rest)
        print("-- start", flush=True)
        tree.start()
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"the steps of the Dockerfile failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
