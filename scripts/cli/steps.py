"""The steps of a command that takes minutes: on a terminal one changing line, otherwise a line for each."""

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Final

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.scripts.cli.tables import console

_LONGEST_LINE: Final = 300


def plain_line(text: str) -> str:
    """Return a message as one line that cannot steer the terminal."""
    return for_terminal(text)[:_LONGEST_LINE]


@contextlib.contextmanager
def show_step(step: str) -> Generator[Callable[[str, str], None]]:
    """Show a step and its time until the body ends. Yield a function that shows another step and its detail."""
    is_terminal = sys.stderr.isatty()
    text = TextColumn("{task.description}", markup=False)
    progress = Progress(TimeElapsedColumn(), text, console=console(sys.stderr), transient=True, disable=not is_terminal)
    task = progress.add_task(step, total=None)

    def show(step: str, detail: str) -> None:
        progress.update(task, description=f"{step}\n{detail}".rstrip())
        if not is_terminal:
            print(detail or step, file=sys.stderr, flush=True)

    with progress:
        yield show
