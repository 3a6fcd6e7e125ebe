from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from autopilot.core.model.policy import Mode
from autopilot.crds.policy_schema import policy_spec_schema
from autopilot.policies.policy_tree import is_expert, policy_fields
from autopilot.settings import parse_policy, policy_names

ROOT = Path(__file__).resolve().parents[3]
CHOSEN = {field.path for field in policy_fields() if not is_expert(field.path)}


def leaves_of(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Dotted path -> schema of each field that is no section."""
    found: dict[str, dict[str, Any]] = {}
    for name, part in schema["properties"].items():
        full = f"{path}.{name}" if path else name
        found |= leaves_of(part, full) if "properties" in part else {full: part}
    return found


def test_the_schema_covers_the_tree_with_its_documentation() -> None:
    """Each chosen field, the base and `expert` stand in the schema described, without references and defaults."""
    schema = policy_spec_schema()
    leaves = leaves_of(schema)
    assert leaves.keys() == CHOSEN | {"base", "expert"}
    assert all(part.get("description") for part in leaves.values())
    assert not {"$ref", "$defs", "default", "required"} & set(str(schema).replace("'", " ").split())
    assert (leaves["horizon_s"]["minimum"], leaves["base"]["enum"]) == (60, list(policy_names()))
    assert leaves["modes.backfill"]["enum"] == [mode.value for mode in Mode]


def test_the_schema_takes_the_durations_that_the_reader_takes() -> None:
    """The pattern of a duration matches what parse_duration_s reads and nothing like it."""
    pattern = leaves_of(policy_spec_schema())["horizon_s"]["pattern"]
    assert all(re.search(pattern, text) for text in ("90", "90s", "1h30m", "7d", "1.5h", "1h 30m", "10 min"))
    assert not any(re.search(pattern, text) for text in ("", "s", "90x", "1h30", "-5m", "m5"))


def reference() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/generate_policy_reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_page_is_what_the_tree_says() -> None:
    """docs/policy.md is up to date; if not: python scripts/generate_policy_reference.py."""
    assert (ROOT / "docs/policy.md").read_text(encoding="utf-8") == reference().render()


def test_the_check_of_the_reference_page_sees_a_change(tmp_path: Path) -> None:
    """--check passes on what the script wrote and fails, writing nothing, on anything else."""
    page = tmp_path / "policy.md"
    main = reference().main
    assert main(["--target", str(page)]) == 0
    assert main(["--check", "--target", str(page)]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("horizon_s", "horizon"), encoding="utf-8")
    before = page.read_bytes()
    assert main(["--check", "--target", str(page)]) == 1
    assert page.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["policy.md"]


def test_the_examples_of_the_reference_page_can_be_used() -> None:
    """Each YAML block of docs/policy.md is a policy."""
    blocks = (ROOT / "docs/policy.md").read_text(encoding="utf-8").split("```yaml\n")[1:]
    assert len(blocks) == 2
    for block in blocks:
        assert parse_policy(block.split("```")[0], "docs/policy.md").name == "night-shift"
