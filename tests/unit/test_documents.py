"""Documents are true where that can be computed: their links, messages, and README's figure."""

from __future__ import annotations

import re
from pathlib import Path

import charts
import page
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    path
    for folder in ("docs", "hack", "helm", "examples", ".")
    for path in (ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md"))
)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(((?!https?:|mailto:)[^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        found = path.parent / target if target else path
        assert found.exists(), link
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), link


def test_messages_are_those_of_the_code() -> None:
    """Of each message on the page the longest part without figures and names."""
    files = [path for folder in ("operator", "trainer-image") for path in (ROOT / folder).rglob("*.py")]
    code = re.sub(r'"\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in files))
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    for message in re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))):
        part = max(re.split(r"\d+%?(?: ms)?|\.\.\.|Uniform ", message), key=len).strip()
        assert part in code, message


def test_readme_is_short_and_its_figure_is_the_recorded_one() -> None:
    (document,) = (each for each in page.read([page.RESULTS / "entrance"]))
    assert f"**{charts.times_as_fast(document):.1f} times as fast**" in README
    assert README.count("\n") <= 150


def test_every_expectation_that_is_met_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "expectations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!people|---)(.+?)\|$", text, re.MULTILINE)
    assert rows
    for row in rows:
        *_, here, test = (cell.strip() for cell in row.split(" | "))
        path, _, name = test.strip("`").partition("::")
        assert bool(path) != bool(re.match("no\\b", here)), row
        assert not path or (ROOT / path).is_file(), row
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), row
