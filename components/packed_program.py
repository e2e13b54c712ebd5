"""Pack a program as self-extracting text: compressed for a field of limited size, written as plain text where it runs."""

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
    """Plain-text copy of a packed program, for inspection on the machine."""

    name: str
    folder: str
    variable: str
    """Environment variable with another folder."""


def packed(header: str, program: str, plain: PlainFile | None = None) -> str:
    """Return a program for Python 3.10 that runs `program`, after writing it to `plain` if set.

    The same program results in the same text on every machine, because bzip2 has a single implementation. zlib has several (zlib-ng, Intel's), so a
    colleague's preview would show a change although nothing changed.
    """
    encoded = base64.b64encode(bz2.compress(program.encode(), 9)).decode()
    lines = "\n".join(encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE))
    text = header + _UNPACKING.format(packed=lines)
    if plain is not None:
        text += _WRITING.format(variable=plain.variable, folder=plain.folder, name=plain.name)
    name = "PLAIN" if plain is not None else '"packed program"'
    return text + f'exec(compile(TEXT, {name}, "exec"))\n'
