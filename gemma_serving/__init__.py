"""Gemma 4 behind vLLM on Google Cloud: the namespace of every import."""

import sys
from pathlib import Path
from typing import Final

VERSION: Final = "0.4.0"
"""Version of every distribution of the repository."""

# The distributions of a checkout, so that `pip install -r requirements.txt` is all that `pulumi` and `./gemma` need. An installation has them beside it.
_PACKAGES: Final = Path(__file__).parents[1] / "packages"
sys.path += [str(_PACKAGES), str(_PACKAGES / "gcp-tpu")]
