"""Entry point of the plugin: `python hosted` in a checkout, `python .` in a release."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hosted.host import serve

if __name__ == "__main__":
    serve()
