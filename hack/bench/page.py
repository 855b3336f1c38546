"""Write the tables and charts of the benchmarks' pages from recorded results: no figure of ours is copied by hand.

    .venv/bin/python hack/bench/page.py
    .venv/bin/python hack/bench/page.py out/bench/bsp --print bsp

It replaces what stands in the pages between `<!-- table: NAME -->`, or `<!-- paper: NAME -->`, and `<!-- end -->`, and
the charts beside them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import charts
import papers
import runner
import tables_asp
import tables_measured as measured
import tables_omnilearn
import tables_papers
import tables_rivals
import tables_scaling
import tables_simulated as simulated
import tables_taming
from table import Document, Documents

RESULTS = runner.REPOSITORY / "hack" / "bench" / "results"
PAGES = runner.REPOSITORY / "docs" / "benchmarks"
MORE_PAGES = ("asynchronous.md", "benchmarks.md", "paper-tables.md", "policies.md")
"""Beside that folder."""

NOTHING = "No results are recorded yet."

TABLES: Mapping[str, tuple[str, Callable[[Documents], str]]] = {
    "ablation": ("ablation", simulated.ablation),
    "activations": ("activations", tables_omnilearn.activations),
    "asp": ("asp", tables_asp.accuracy),
    "asp_run": ("asp_run", tables_asp.real),
    "asp_server": ("asp_server", tables_asp.server),
    "asp_chaos": ("asp_chaos", tables_asp.chaos),
    "bsp": ("bsp", measured.bsp),
    "by_batch": ("by_batch", tables_papers.by_batch),
    "chaos": ("chaos", measured.chaos),
    "decide": ("decide", simulated.decide),
    "elastic": ("elastic", simulated.elastic),
    "exchange": ("exchange", tables_papers.exchange),
    "gpu": ("gpu", measured.gpu),
    "lbbsp": ("lbbsp", tables_papers.lbbsp),
    "omnilearn_accuracy": ("omnilearn_accuracy", tables_omnilearn.accuracy),
    "omnilearn_dynamic": ("omnilearn", tables_omnilearn.dynamic),
    "omnilearn_growing": ("omnilearn", tables_omnilearn.growing),
    "omnilearn_many": ("omnilearn", tables_omnilearn.many),
    "omnilearn_spreads": ("omnilearn", tables_omnilearn.spreads),
    "omnilearn_static": ("omnilearn", tables_omnilearn.static),
    "overhead": ("overhead", measured.overhead),
    "predictors": ("predictors", tables_papers.predictors),
    "policies": ("simulated", simulated.policies),
    "replacement": ("replacement", measured.replacement),
    "rivals": ("rivals", tables_rivals.rivals),
    "saved": ("bsp", measured.saved),
    "scaling": ("scaling", tables_scaling.scaling),
    "simulated": ("simulated", simulated.simulated),
    "stealing": ("rivals", tables_rivals.stealing),
    "stragglers": ("stragglers", simulated.stragglers),
    "taming": ("taming", tables_taming.clusters),
    "transition": ("transition", measured.transition),
    "weighting": ("weighting", measured.weighting),
}
"""The benchmark whose results each table shows, and what writes it."""

CHARTS: Mapping[str, tuple[str, Callable[[Documents], str]]] = {
    "convergence.svg": ("convergence", lambda documents: charts.convergence(documents[0])),
    "policies.svg": ("courses", lambda documents: charts.courses(documents[0])),
    "loss.svg": ("entrance", lambda documents: charts.losses(documents[0])),
    "oracle.svg": ("simulated", charts.oracle),
    "terminal.svg": ("entrance", lambda documents: charts.terminal(documents[0])),
    "throughput.svg": ("bsp", charts.throughput),
}


def read(paths: Iterable[Path]) -> list[Document]:
    """All results in these files and folders, by their names. Raises BenchmarkError if one is no result."""
    known = {benchmark for benchmark, _ in (*TABLES.values(), *CHARTS.values())} | papers.BENCHMARKS
    found = []
    for path in paths:
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            document = json.loads(file.read_text(encoding="utf-8"))
            if document.get("benchmark") not in known:
                raise runner.BenchmarkError(f"{file} is no result of a benchmark")
            found.append(document)
    return found


def rendered(documents: Documents, name: str) -> str:
    """The table of this name."""
    benchmark, write = TABLES[name]
    own = [document for document in documents if document["benchmark"] == benchmark]
    return write(own) if own else NOTHING


def replaced(text: str, documents: Documents) -> str:
    """The text with its tables replaced."""

    def written(match: re.Match[str]) -> str:
        write = papers.rendered if match[2] == "paper" else rendered
        return f"{match[1]}\n\n{write(documents, match[3])}\n\n<!-- end -->"

    return re.sub(r"(<!-- (table|paper): (\w+) -->)\n.*?<!-- end -->", written, text, flags=re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Print or write. Raises BenchmarkError if a file is no result."""
    parser = argparse.ArgumentParser(description="Write benchmarks' results into their pages.")
    parser.add_argument("results", type=Path, nargs="*", default=sorted(RESULTS.glob("*/")), help="folders and files")
    parser.add_argument("--print", choices=TABLES, metavar="TABLE", help=f"only print one of {', '.join(TABLES)}")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the pages and charts")
    options = parser.parse_args(arguments)
    documents = read(options.results)
    if options.print is not None:
        print(rendered(documents, options.print))
        return 0
    for page in [*options.pages.glob("*.md"), *(options.pages.with_name(name) for name in MORE_PAGES)]:
        page.write_text(replaced(page.read_text(encoding="utf-8"), documents), encoding="utf-8")
    for name, (benchmark, draw) in CHARTS.items():
        if own := [document for document in documents if document["benchmark"] == benchmark]:
            (options.pages / name).write_text(draw(own), encoding="utf-8")
    return 0


if __name__ == "__main__":
    runner.command(main)
