"""How often the engine starts a program, by whatever command: the program of a copy notes it, and the suite's budget counts it."""

import contextlib

from tests.suite import COLD, STARTS, count


def starts_file(project):
    """Return the file that gets a character for each start of the program."""
    return project.with_name("starts")


def note_starts(project):
    """Let the program of a copied project note its starts, before it imports anything."""
    program = project / "__main__.py"
    text = program.read_text()
    note = f'with open({str(starts_file(project))!r}, "a") as starts:\n    starts.write("x")\n'
    assert text.count("\nimport pulumi\n") == 1
    program.write_text(text.replace("\nimport pulumi\n", f"\n{note}\nimport pulumi\n"))


@contextlib.contextmanager
def counted_starts(project, *, cold):
    """Count the starts of a program that happen in the block."""
    try:
        yield
    finally:
        path = starts_file(project)
        count(COLD if cold else STARTS, path.stat().st_size if path.exists() else 0)
