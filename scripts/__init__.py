"""Commands to run with `pulumi`: `python -m scripts.NAME --help`.

Each command is a folder; `cli/` is shared code. Another command may import only a command's `face.py`.
"""

from contracts.interpreter import require

require("rich")
