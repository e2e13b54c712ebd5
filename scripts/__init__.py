"""Commands that a user or a workflow runs beside `pulumi`: `python -m scripts.NAME --help`.

Each is a folder, and `cli/` is what they share. Another command may import a command's `face.py` and nothing else of it.
"""

from contracts.interpreter import require

require("rich")
