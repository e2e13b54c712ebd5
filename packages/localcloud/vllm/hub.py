"""Downloads from the hub: its answer to a server or to `hf download`, with the messages of huggingface_hub and transformers, and their duration."""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

from localcloud.json_values import as_object
from localcloud.vllm import parent_watch
from localcloud.vllm.recorded import GIB, Model, constant, find_card, find_model
from localcloud.vllm.refusals import hub_words
from localcloud.vllm.settings import RuntimeEnvironment

_FILES, _STEPS = 9, 5

_LIMIT_S: Final = 30.0
_GATED: Final = "GatedRepo"
_REVISION: Final = "RevisionNotFound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of the hub. `status` is 0 without a response."""

    model: str
    status: int
    revision: str = ""
    code: str = ""
    message: str = ""

    def printed(self, client: str) -> str:
        """Return what a client prints: vLLM (`server`), or `hf download` (`command`)."""
        name = {_GATED: "gated", _REVISION: "revision"}.get(self.code, "other" if self.status else "unreachable")
        if name == "other" and (self.status == HTTPStatus.NOT_FOUND or self.message == "Invalid username or password."):
            name = "absent"  # the hub hides the repository from this caller
        return hub_words(
            client,
            name,
            model=self.model,
            quoted=quote(self.revision, safe=""),
            message=self.message,
            status=self.status,
            kind="Client" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "Server",
            reason=HTTPStatus(self.status).phrase if self.status else "",
        )


def refusal(model: str, environment: RuntimeEnvironment, *, revision: str = "") -> Refusal | None:
    """Check with the local cloud's hub whether a model can be downloaded. Return its error, or None.

    A server without a local cloud has no hub, so every supported model can be downloaded.
    """
    if not environment.hub:
        return None
    paths = [f"{quote(model)}/auth-check"] + (
        [f"{quote(model)}/revision/{quote(revision, safe='')}"] if revision else []
    )
    found = (_answer(f"{environment.hub}/api/models/{path}", model, revision, environment.hub_token) for path in paths)
    return next((one for one in found if one is not None), None)


def _answer(url: str, model: str, revision: str, token: str) -> Refusal | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310 - a loopback address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_LIMIT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            try:
                message = str(as_object(json.loads(error.read())).get("error") or "")
            except ValueError:
                message = ""
            code = error.headers.get("X-Error-Code") or ""
            return Refusal(model=model, revision=revision, status=error.code, code=code, message=message)
    except OSError:
        return Refusal(model=model, revision=revision, status=0)


def cache_file(name: str, environment: RuntimeEnvironment, revision: str = "") -> Path | None:
    """Return the file that a download of a model creates in the hub's cache (HF_HOME). None if the cache is deleted with the container.

    Each revision has one. The real cache shares files between revisions; here the second one is downloaded completely.
    """
    home = environment.volume_path(environment.hub_home) if environment.hub_home else None
    file = f"simulated-download-{revision.replace('/', '--')}" if revision else "simulated-download"
    return None if home is None else home / "hub" / f"models--{name.replace('/', '--')}" / file


def is_cached(name: str, environment: RuntimeEnvironment, revision: str = "") -> bool:
    """Return whether the hub's cache has a model: after a simulated download, or as the real files of a snapshot."""
    kept = cache_file(name, environment, revision)
    if kept is None or kept.is_file():
        return kept is not None
    ref = kept.parent / "refs" / (revision or "main")
    return (
        kept.parent / "snapshots" / (ref.read_text(encoding="utf-8") if ref.is_file() else revision or "-")
    ).is_dir()


def download_s(model: Model, environment: RuntimeEnvironment) -> float:
    """Return the simulated seconds of a download from the hub, without the load after it."""
    card = find_card(environment.accelerator)
    if card is not None and card.kind == "tpu":
        return model.disk_bytes / (min(constant("TPU_HUB_MB_PER_S"), environment.network_mb_per_s) * 1e6)
    megabytes = model.disk_bytes / 1e6
    load_s = megabytes / constant("DISK_MB_PER_S")
    load_and_download_s = megabytes / min(constant("HUB_MB_PER_S"), environment.network_mb_per_s)
    return load_and_download_s - load_s


def download(words: Sequence[str], environment: RuntimeEnvironment) -> int:
    """Run `hf download MODEL`. Return its exit code: 1 if the hub does not have the model."""
    parent_watch.hold(environment.lifeline)
    given = _parser().parse_args(list(words))
    refused = refusal(given.model, environment, revision=given.revision or "")
    model = find_model(given.model)
    if model is None and refused is None:
        # The simulator can only serve known models.
        refused = Refusal(model=given.model, status=404)
    if model is None or refused is not None:
        print(refused.printed("command") if refused is not None else "", file=sys.stderr)
        return 1
    kept = cache_file(given.model, environment, given.revision or "")
    has = is_cached(given.model, environment, given.revision or "")
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
