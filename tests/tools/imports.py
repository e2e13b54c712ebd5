"""What the lines of a source import. Parsing a thousand files takes seconds, so a line of a text that reads as an import counts as one."""

import re

_LINE = re.compile(r"^ *(?:from (\w[\w.]*) import |import ([\w., ]+))", re.MULTILINE)


def imports(text):
    """Yield the line and the full name of each imported module."""
    for found in _LINE.finditer(text):
        names = [found[1]] if found[1] else re.split(r"(?: as \w+)?(?:, *|$)", found[2].rstrip())
        yield from ((text.count("\n", 0, found.start()) + 1, name) for name in names if name)
