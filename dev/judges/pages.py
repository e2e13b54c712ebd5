"""`python -m dev.judges.pages [--check]`: write the pages and files that come from judges. `make docs` runs it."""

import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Final

from dev.authors.docs import JUDGED, ROOT, DocsOptions, fill, write_pages
from dev.judges.accuracy import documents
from dev.judges.accuracy import page as accuracy
from dev.judges.compiled import page as compiled
from dev.judges.overlays import page as overlays
from dev.judges.planted import refuse_planted
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, run_command


def _pages(options: DocsOptions) -> ExitCode:
    texts = {
        "dev/docs/compiled.md": compiled.page(),
        "dev/docs/documents.csv": documents.rows_file(),
        "dev/docs/documents.md": documents.page(),
        "dev/docs/overlays.md": overlays.page(),
        "gemma_serving/planning/data/documents.json": documents.far_file(),
        "dev/judges/accuracy/accuracy.csv": accuracy.rows_file(),
    }
    tables = accuracy.tables()
    for path in JUDGED:
        texts[path] = fill(ROOT.joinpath(path).read_text(encoding="utf-8"), tables, path)
    planted_lie()
    return write_pages({ROOT / path: text for path, text in texts.items()}, check=options.check)


def planted_lie() -> None:
    """Refuse the claim that a page without its last line is up to date."""
    path = ROOT / "dev/docs/compiled.md"
    texts = {path: path.read_text(encoding="utf-8") + "\n"}
    with redirect_stdout(StringIO()):
        refuse_planted(
            "a page that lacks a line is up to date", lambda: write_pages(texts, check=True) is ExitCode.FAILED
        )


COMMAND: Final = Command(name="pages", room="dev.judges", help=__doc__, options=DocsOptions, run=_pages)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
