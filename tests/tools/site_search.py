"""Ask the search of the built site the questions of public threads: `make site` runs this after the build.

  python -m tests.tools.site_search

Exit code 1 if a section that answers one is not near the top, or if Node.js, which runs the search, is not installed.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
QUESTIONS: Final[Sequence[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("questions.toml").read_text())[
    "questions"
]
MOST_PAGES: Final = 5
MOST_SECTIONS: Final = 3
"""Hits that a reader sees: the first pages, each with its first sections; the site folds the rest of a page."""


def found(site: Path, questions: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield what the site's search lists for each question: sections by page, best first."""
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    command = ["node", Path(__file__).with_suffix(".mjs"), worker, site / "search" / "search_index.json"]
    done = subprocess.run(
        command, input="\n".join(questions), stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    yield from map(json.loads, done.stdout.splitlines())


def is_near_the_top(pages: list[list[str]], answers: Sequence[str]) -> bool:
    """Return whether one of the answers is among the hits that a reader sees."""
    seen = {each for page in pages[:MOST_PAGES] for each in [one for one in page if "#" in one][:MOST_SECTIONS]}
    return not seen.isdisjoint(answers)


def main() -> int:
    """Print the questions whose answer is not near the top."""
    if shutil.which("node") is None:
        print("site: Node.js, which runs the site's search, is not installed. Install it, then run `make site` again.")
        return 1
    results = zip(QUESTIONS, found(ROOT / "build" / "site", [each["asked"] for each in QUESTIONS]), strict=True)
    missed = [each["asked"] for each, pages in results if not is_near_the_top(pages, each["answers"])]
    print(f"site: the search answers {len(QUESTIONS) - len(missed)} of {len(QUESTIONS)} questions of public threads")
    print("".join(f"  not near the top: {asked}\n" for asked in missed), end="")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
