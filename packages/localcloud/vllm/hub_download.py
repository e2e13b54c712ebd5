"""`hf download` of an image: write a model to the hub's cache on a volume after its simulated download time."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from localcloud.vllm import hub_access, parent_watch
from localcloud.vllm.models import GIB, Model, find_model
from localcloud.vllm.settings import RuntimeEnvironment
from localcloud.vllm.startup import download_s, hub_cache_file

_FILES = 9
_STEPS = 5


def main(words: Sequence[str], environment: RuntimeEnvironment) -> int:
    """Run `hf download MODEL`. Return its exit code: 1 if the hub does not have the model."""
    parent_watch.hold(environment.lifeline)
    given = _parser().parse_args(list(words))
    refused = hub_access.refusal(given.model, environment, revision=given.revision or "")
    model = find_model(given.model)
    if model is None and refused is None:
        # The simulator can only serve known models.
        refused = hub_access.Refusal(model=given.model, status=404)
    if refused is not None or model is None:
        print(refused.of_command() if refused is not None else "", file=sys.stderr)
        return 1
    kept = hub_cache_file(given.model, environment, given.revision or "")
    has = kept is not None and kept.is_file()
    if given.dry_run:
        left = 0.0 if has else model.disk_bytes / 1e9
        print(f"[dry-run] Will download {0 if has else _FILES} files (out of {_FILES}) totalling {left:.1f}G.")
    elif not has:
        _download(model, environment, kept)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf download", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--revision")
    parser.add_argument("--exclude")
    parser.add_argument("--dry-run", action="store_true")
    return parser


def _download(model: Model, environment: RuntimeEnvironment, kept: Path | None) -> None:
    for step in range(1, _STEPS + 1):
        time.sleep(download_s(model, environment) / _STEPS / environment.clock_speed)
        print(f"Fetching {_FILES} files: {step / _STEPS:4.0%} of {model.disk_bytes / GIB:.1f} GiB", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("content of the hub's file\n", encoding="utf-8")
