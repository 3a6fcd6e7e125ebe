"""Runbooks: what is read, and that a broken one is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.oncall.rendered import TAGS, parts_of
from autopilot.oncall.runbook import SECTIONS, bound, load_runbooks, parse_runbook, quoted

FRONT = """---
alert: GPUAutopilotClusterFragmented
subject: pool
diagnosis:
  - title: Stranded GPUs by cause
    query: max by (cause) (gpu_autopilot_stranded_gpus{pool=$pool})
    unit: GPUs
actions:
  - action: defragment
    why: Its moves free whole nodes.
verification:
  query: pool:gpu_autopilot_pending_stranded:ratio{pool=$pool}
  below: 0.05
  within: 15m
undo: Moves are not undone.
---
"""
BODY = "# GPUAutopilotClusterFragmented\n\n" + "".join(f"## {name}\n\nText.\n\n" for name in SECTIONS)
TEXT = FRONT + BODY


def test_a_runbook_is_read() -> None:
    """The front matter as fields, the rest as text."""
    book = parse_runbook(TEXT.encode(), "F.md")
    assert book.alert == "GPUAutopilotClusterFragmented"
    assert book.front.verification.within == 900.0
    assert [each.action for each in book.front.actions] == ["defragment"]
    assert book.text.startswith("# GPUAutopilotClusterFragmented")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("---\nalert", "alert", "F.md:1: a runbook begins with a line `---`"),
        ("\n---\n", "\n", "F.md:1: the front matter does not end"),
        ("subject: pool", "subject: [pool", "F.md:4: the front matter is not YAML"),
        ("subject: pool", "subject: pod", "F.md:3: subject: "),
        (
            "action: defragment",
            "action: defragmnt",
            "F.md:9: actions.0: unknown action 'defragmnt'; did you mean defragment?",
        ),
        ("pool=$pool})\n    unit", "pool=$pod})\n    unit", "$pod: no label of an alert"),
        ("  below: 0.05\n", "", "F.md:11: verification: give a query with one of"),
        ("within: 15m", "within: soon", "F.md:14: verification.within"),
        ("undo: Moves are not undone.\n", "", "undo: Field required"),
        ("undo:", "mode: auto\nundo:", "F.md:15: mode: Extra inputs are not permitted"),
        ("    why: Its", "    command: rm -rf /\n    why: Its", "F.md:10: actions.0.command: Extra inputs"),
        ("# GPUAutopilotClusterFragmented", "# Fragmented", "F.md:17: the text begins with the heading"),
        ("## Impact", "## Impacts", "the section `## Impact` is missing"),
    ],
)
def test_a_broken_runbook_is_refused_with_its_line(old: str, new: str, words: str) -> None:
    """One message that names file, line, field and fix."""
    assert old in TEXT
    with pytest.raises(InputError) as raised:
        parse_runbook(TEXT.replace(old, new, 1).encode(), "F.md")
    assert words in str(raised.value)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """No other exception escapes, also where the bytes look like a front matter."""
    for text in (content, b"---\n" + content + b"\n---\n# X\n"):
        with pytest.raises(InputError):
            parse_runbook(text, "F.md")


def test_the_file_is_named_after_its_alert(tmp_path: Path) -> None:
    """One file for each alert."""
    (tmp_path / "Other.md").write_text(TEXT)
    with pytest.raises(InputError, match=r"the file of this alert is GPUAutopilotClusterFragmented\.md"):
        load_runbooks(tmp_path)
    (tmp_path / "Other.md").rename(tmp_path / "GPUAutopilotClusterFragmented.md")
    assert list(load_runbooks(tmp_path)) == ["GPUAutopilotClusterFragmented"]


@given(st.text(max_size=50))
def test_a_label_value_cannot_leave_its_string(value: str) -> None:
    """The query around the value is what the runbook says, whatever the value is."""
    query = bound("up{pool=$pool} > 1", {"pool": value})
    assert query is not None
    inside = query.removeprefix('up{pool="').removesuffix('"} > 1')
    assert query == f'up{{pool="{inside}"}} > 1'
    assert "\n" not in inside
    position = 0
    while position < len(inside):  # each quotation mark is escaped, and no escape reaches beyond the end
        assert inside[position] != '"'
        position += 2 if inside[position] == "\\" else 1
    assert position == len(inside)


def test_a_query_without_its_label_is_not_asked() -> None:
    """A missing label never becomes an empty one, which matches everything."""
    assert bound("up{pool=$pool}", {}) is None
    assert bound("up", {}) == "up"
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


def test_nothing_in_a_runbook_becomes_an_attribute_or_an_unknown_element() -> None:
    """HTML is text, a link is its words; a block of code keeps its lines."""
    text = """# Title

## A <script>x</script>

1. See [here](https://a/b) ![seen](x.png) and `a < b`
   <img src=x onerror=y>

   ```promql
   up
   ```
"""
    head, steps = parts_of(text)
    assert head == {"tag": "h3", "inside": ["A <script>x</script>"]}
    code = {"tag": "code", "inside": ["a < b"]}
    line = {"tag": "p", "inside": ["See ", "here", " ", "seen", " and ", code, " ", "<img src=x onerror=y>"]}
    assert steps == {"tag": "ol", "inside": [{"tag": "li", "inside": [line, {"tag": "pre", "inside": ["up\n"]}]}]}


@given(st.text(alphabet="#*_`[]()<>|-1. \n\\abc!&\"'", max_size=200))
def test_any_text_becomes_known_elements(text: str) -> None:
    """With their two fields, and text."""
    parts = parts_of(text)
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            assert part.keys() == {"tag", "inside"}
            assert part["tag"] in TAGS | {"pre", *(f"h{level}" for level in range(3, 7))}
            parts.extend(part["inside"])
