"""`python -m judges.pages [--check]`: write the pages and files that come from judges. `make docs` runs it."""

import sys
from typing import Final

from authors.docs import JUDGED, ROOT, DocsOptions, fill, write_pages
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, run_command
from judges.accuracy import documents
from judges.accuracy import page as accuracy
from judges.compiled import page as compiled
from judges.overlays import page as overlays


def _pages(options: DocsOptions) -> ExitCode:
    texts = {
        "docs/authors/compiled.md": compiled.page(),
        "docs/authors/documents.csv": documents.rows_file(),
        "docs/authors/documents.md": documents.page(),
        "docs/authors/overlays.md": overlays.page(),
        "gemma_serving/planning/data/documents.json": documents.far_file(),
        "judges/accuracy/accuracy.csv": accuracy.rows_file(),
    }
    tables = accuracy.tables()
    for path in JUDGED:
        texts[path] = fill(ROOT.joinpath(path).read_text(encoding="utf-8"), tables, path)
    return write_pages({ROOT / path: text for path, text in texts.items()}, check=options.check)


COMMAND: Final = Command(name="pages", room="judges", help=__doc__, options=DocsOptions, run=_pages)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
