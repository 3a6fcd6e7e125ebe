"""Print the packages of the core: modules, lines, and the packages that each one imports.

    python scripts/count_structure.py

The table in CONTRIBUTING.md is this output.
"""

from __future__ import annotations

import ast
from pathlib import Path

CORE = Path(__file__).resolve().parent.parent / "autopilot" / "core"


def imported_packages(module: Path) -> set[str]:
    """Packages of the core that a module imports."""
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[2] for name in names if name.startswith("autopilot.core.")}


def main() -> None:
    """One row per package, and the sums."""
    packages = sorted(path.parent for path in CORE.glob("*/__init__.py"))
    print("| package | modules | lines | imports packages |")
    print("|---|---|---|---|")
    all_modules, all_lines, all_imports = 0, 0, 0
    for package in packages:
        modules = sorted(package.glob("*.py"))
        lines = sum(len(module.read_text(encoding="utf-8").splitlines()) for module in modules)
        imports = sorted(set().union(*(imported_packages(module) for module in modules)) - {package.name})
        print(f"| `{package.name}` | {len(modules)} | {lines:,} | {len(imports)}: {', '.join(imports) or '-'} |")
        all_modules, all_lines, all_imports = all_modules + len(modules), all_lines + lines, all_imports + len(imports)
    print(f"| {len(packages)} packages | {all_modules} | {all_lines:,} | {all_imports} |")


if __name__ == "__main__":
    main()
