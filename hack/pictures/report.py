"""Take the pictures of a run's page that the documents show: the first screens of it, wide and light, narrow and dark.

make demo
.venv/bin/python hack/pictures/report.py out/demo
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from browser import Browser, BrowserError

PICTURES = Path(__file__).parents[2] / "docs" / "images"
SIZES = (("report.png", 1000, 1330, "light"), ("report-narrow.png", 390, 1160, "dark"))
"""Each one's name, its width and height in pixels, and its theme."""


def main() -> int:
    """Write the pictures. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a run, with its report.html")
    page = parser.parse_args().run / "report.html"
    if not page.is_file():
        print(f"{page} does not exist; `heterotrain report` writes it", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    try:
        with Browser() as browser:
            for name, width, height, theme in SIZES:
                browser.open(page, width=width, theme=theme)
                (PICTURES / name).write_bytes(browser.screenshot(height))
    except BrowserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
