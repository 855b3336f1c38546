"""What the site has beside `docs/`: the files of the repository that its pages link to.

Pages are read on GitHub too, where a link such as `../examples/digits.py` leads to a file. No address of the repository
holds for everybody, so the site brings these files along, below `repository/`: pages as pages, code as a page that
shows it, and a folder as the list of its files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
BESIDE = "repository"
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh"}
TABLE = "[The table](../README.md#beside-others)\n"
"""Where the site has that part of README itself."""

LINK_OR_CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\((?![a-z]+:|#)([^)\s#]+)", re.DOTALL)


def in_repository(uri: str) -> str:
    """The path, from the repository's root, of the file behind a page of the site."""
    return uri.removeprefix(f"{BESIDE}/") if uri.startswith(f"{BESIDE}/") else f"docs/{uri}"


def uri_of(path: str) -> str:
    """Where the site has a file of the repository; of code and folders the page that shows it."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{BESIDE}/{path}/index.md"
    return f"{BESIDE}/{path}" + (".md" if posixpath.splitext(path)[1] in LANGUAGES else "")


def links(path: str, text: str) -> set[str]:
    """The files of the repository that a page links to."""
    found = (match[1] for match in LINK_OR_CODE.finditer(text) if match[1])
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) for target in found}


def shown(path: str) -> str | None:
    """A file or folder as a page; None where it is to be copied as it is."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.name[0] not in "._")
        return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    if file.suffix in LANGUAGES:
        return f"# {path}\n\n````{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````\n"
    return file.read_text(encoding="utf-8") if file.suffix == ".md" else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside `docs/`, and what those pages link to."""
    texts = {in_repository(file.src_uri): file.content_string for file in files.documentation_pages()}
    while texts:
        more = {}
        for target in {target for path, text in texts.items() for target in links(path, text)}:
            uri = uri_of(target)
            if target.startswith("docs/") or not (ROOT / target).exists() or files.get_file_from_path(uri):
                continue
            if (text := shown(target)) is not None:
                more[in_repository(uri)] = text
                file = File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            else:
                file = File.generated(config, uri, abs_src_path=str(ROOT / target))
            files.append(file)
        texts = more
    return files


def moved(text: str, path: str, uri: str) -> str:
    """The text of a file of the repository, with links as they are on a page of the site."""

    def link(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0]
        (target,) = links(path, match[0])
        return "](" + posixpath.relpath(uri_of(target), posixpath.dirname(uri) or ".")

    return LINK_OR_CODE.sub(link, text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to where the site has what they lead to."""
    text, uri = markdown + "\n", page.file.src_uri
    before, found, after = text.partition(TABLE)
    readme = (ROOT / "README.md").read_text(encoding="utf-8") if found else ""
    table = readme.partition("## Beside others\n")[2].partition("\n## ")[0]
    path = in_repository(uri)
    return moved(before, path, uri) + moved(table, "README.md", uri) + moved(after, path, uri)
