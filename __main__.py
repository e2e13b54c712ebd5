"""Gemma 4 behind vLLM on Google Cloud: settings -> plan -> stack -> outputs."""

import sys
from pathlib import Path

# The distributions of this checkout, so that `pip install -r requirements.txt` is all that `pulumi` needs.
sys.path[:0] = [str(Path(__file__).with_name("packages") / part) for part in ("", "gcp-tpu")]

from gemma_serving.stacks.program import main  # noqa: E402

main()
