"""Summary of a workflow step."""

import os
from pathlib import Path


def write_summary(markdown: str) -> None:
    """Append Markdown to the step summary; do nothing outside a workflow."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown)
