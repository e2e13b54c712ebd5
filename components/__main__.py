"""Entry point of this folder as a plugin: the language host runs it as `python components`, from any folder."""

import runpy
import sys
from pathlib import Path

# `python components` puts this folder in front, where modules have usual names. The namespace is next to it in a checkout, above it in a wheel.
# An environment that the engine made for a clone lacks the provider's distribution, which `make setup` links.
_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = (_ROOT, _ROOT / "packages" / "gcp-tpu") if (_ROOT / "gemma_serving").is_dir() else (_ROOT.parent,)
sys.path[:1] = [str(folder) for folder in _FOLDERS]

if __name__ == "__main__":
    runpy.run_module("gemma_serving.stacks.package.provider", run_name="__main__", alter_sys=True)
