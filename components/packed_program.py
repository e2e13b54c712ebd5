"""A program as text that unpacks itself: compressed for a field of limited size, in plain text on the machine where it runs."""

import base64
import bz2
from dataclasses import dataclass
from typing import Final

_LINE: Final = 120
_UNPACKING: Final = '''import base64, bz2, os

PACKED = """
{packed}
"""
TEXT = bz2.decompress(base64.b64decode(PACKED))
'''
_WRITING: Final = """FOLDER = os.environ.get("{variable}") or "{folder}"
PLAIN = os.path.join(FOLDER, "{name}")
try:
    os.makedirs(FOLDER, exist_ok=True)
    with open(PLAIN + ".new", "wb") as file:
        file.write(TEXT)
    os.replace(PLAIN + ".new", PLAIN)
except OSError:
    pass  # a disk that is full or read-only does not stop the program
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFile:
    """Where a packed program writes itself in plain text, for people who look at the machine."""

    name: str
    folder: str
    variable: str
    """Environment variable that names another folder."""


def packed(header: str, program: str, plain: PlainFile | None = None) -> str:
    """Return a program for Python 3.10 that runs `program`, and before that writes it to `plain` if one is named.

    The same program gives the same text on every machine. bzip2 has one implementation, so its output does not depend on the machine.
    zlib has several (zlib-ng, Intel's): the preview of a colleague would show a change where there is none.
    """
    encoded = base64.b64encode(bz2.compress(program.encode(), 9)).decode()
    lines = "\n".join(encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE))
    text = header + _UNPACKING.format(packed=lines)
    if plain is not None:
        text += _WRITING.format(variable=plain.variable, folder=plain.folder, name=plain.name)
    name = "PLAIN" if plain is not None else '"packed program"'
    return text + f'exec(compile(TEXT, {name}, "exec"))\n'
