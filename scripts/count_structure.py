"""Print the packages of the core: their modules, and the packages that each one imports.

    python scripts/count_structure.py

The table in CONTRIBUTING.md is this output; tests/tidy checks it.
"""

from __future__ import annotations

import ast
from pathlib import Path

CORE = Path(__file__).resolve().parent.parent / "autopilot" / "core"


def imported_packages(module: Path) -> set[str]:
    """Packages of the core imported by a module."""
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[2] for name in names if name.startswith("autopilot.core.")}


def table() -> str:
    """One row per package, and the sums, as Markdown."""
    rows = ["| package | modules | imports packages |", "|---|---|---|"]
    all_modules, all_imports = 0, 0
    packages = sorted(path.parent for path in CORE.glob("*/__init__.py"))
    for package in packages:
        modules = sorted(package.rglob("*.py"))
        imports = sorted(set().union(*(imported_packages(module) for module in modules)) - {package.name})
        rows.append(f"| `{package.name}` | {len(modules)} | {len(imports)}: {', '.join(imports) or '-'} |")
        all_modules, all_imports = all_modules + len(modules), all_imports + len(imports)
    rows.append(f"| {len(packages)} packages | {all_modules} | {all_imports} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
