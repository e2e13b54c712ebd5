"""The program in a packed text, read without running it."""

import base64
import bz2
import re


def unpacked(text: str) -> str:
    """Return the program in plain text."""
    found = re.search(r'PACKED = """\n([A-Za-z0-9+/=\n]+)\n"""', text)
    assert found, text[:500]
    return bz2.decompress(base64.b64decode(found[1])).decode()
