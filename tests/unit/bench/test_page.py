"""The benchmarks' pages show what is recorded."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import page
import pytest
from runner import BenchmarkError


def test_tables_and_charts_are_those_of_the_recorded_results(tmp_path: Path) -> None:
    """`python hack/bench/page.py` writes them."""
    shutil.copytree(page.PAGES, tmp_path / "benchmarks")
    for name in page.MORE_PAGES:
        shutil.copy(page.PAGES.with_name(name), tmp_path)
    assert page.main(["--pages", str(tmp_path / "benchmarks")]) == 0
    for written in tmp_path.rglob("*.*"):
        assert written.read_text() == (page.PAGES.parent / written.relative_to(tmp_path)).read_text(), written.name


def test_every_chart_and_table_has_a_place() -> None:
    pages = [*page.PAGES.glob("*.md"), *(page.PAGES.with_name(name) for name in page.MORE_PAGES)]
    pages.append(page.runner.REPOSITORY / "README.md")
    text = "\n".join(each.read_text() for each in pages)
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) <= page.TABLES.keys()
    assert re.findall(r"<!-- paper: (\w+) -->", text) == list(page.papers.PAPERS)
    assert all(f"benchmarks/{name}" in text for name in page.CHARTS)


def test_a_figure_without_results_is_not_measured() -> None:
    for name, paper in page.papers.PAPERS.items():
        assert page.papers.rendered([], name).count(page.papers.NOT_MEASURED) == len(paper.rows)


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BenchmarkError, match="is no result of a benchmark"):
        page.read([tmp_path])
