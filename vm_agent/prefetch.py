"""Fetch the models of a new document into the hub cache while the old server still serves."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from contracts.guest_attributes import WAITING_FOR_HUB
from contracts.serving_document import ServingDocument
from vm_agent.base import CONTAINER, GIB, HUB_CACHE, HUB_CACHE_VARIABLE, ServingError, SupersededError, log
from vm_agent.confinement import HARDENED
from vm_agent.containers import (
    DISK_ADVICE,
    PASSING,
    docker_message,
    hub_cache_options,
    run_command,
    run_followed,
    secrets_option,
)
from vm_agent.mounted import names_in, opened_folder, tree_bytes

FETCH_CONTAINER = f"{CONTAINER}-fetch"
NOT_IN_IMAGE = re.compile(r'\bexec: "hf": ')
"""Message of `docker run` for a program that the image does not have. Its exit code, 127, is also that of a missing mount or device."""
REMAINING = re.compile(r"totall?ing (\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
"""End of the output of `hf download --dry-run`: "Will download 5 files (out of 9) totalling 12.3G"."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class HubModel:
    """A hub repository and its revision; an empty revision is the default branch."""

    name: str
    revision: str = ""


def hub_models(document: ServingDocument) -> "tuple[HubModel, ...]":
    """Return the models that the server downloads from the hub: its own and the draft model."""
    words = [*document.command, *document.arguments]
    after = words[words.index("serve") + 1 :] if "serve" in words else []
    own = flag_value(words, "--model") or (after[0] if after else "")
    # The draft model is in the JSON value of a flag.
    drafts = [parsed_object(word) for one in words for word in (one, one.partition("=")[2])]
    named = [HubModel(str(draft.get("model") or ""), str(draft.get("revision") or "")) for draft in drafts]
    found = [HubModel(own, flag_value(words, "--revision")), *named]
    return tuple(model for model in found if HUB_ID.fullmatch(model.name))


def parsed_object(word: str) -> "dict[str, object]":
    """Return an argument that is a JSON object, or else an empty object."""
    if not word.startswith("{"):
        return {}
    try:
        return cast("dict[str, object]", json.loads(word))
    except ValueError:
        return {}


def flag_value(words: Sequence[str], flag: str) -> str:
    """Return the last value of a flag, `--flag=value` or `--flag value`, or an empty string."""
    found = ""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else next(iter(words[position + 1 : position + 2]), "")
    return found


@dataclass
class HubFetch:
    """Download with the new image's `hf`, in a container that exits after the download."""

    document: ServingDocument
    secrets: Mapping[str, str]
    progress: Callable[[str], None]
    cancelled: Callable[[], bool]
    cache: Path = field(default_factory=lambda: Path(HUB_CACHE))
    options: Sequence[str] = ()
    """Docker's options that keep the machine's token from the container (vm_agent.metadata_guard)."""

    def run(self, served: "ServingDocument | None") -> bool:
        """Fetch models that the served document lacks. Return False if they do not fit on the disk next to the old ones.

        Raises ServingError if the hub rejects the request or the disk is too small even without the old model, and SupersededError if it was
        cancelled.
        """
        if self.document.weights is not None or HUB_CACHE_VARIABLE in self.document.environment:
            return True
        known = hub_models(served) if served is not None else ()
        return all(self._fetch(model) for model in hub_models(self.document) if model not in known)

    def _fetch(self, model: HubModel) -> bool:
        self.progress(model.name)
        status, lines = self._hf(model, "--dry-run", tell=lambda _line: None)
        if status and NOT_IN_IMAGE.search(" ".join(lines)):
            log("The image has no program `hf`. The new server downloads its weights.")
            return True
        needed = REMAINING.search(" ".join(lines)) if status == 0 else None
        if needed and not self._has_room(model, float(needed[1]) * UNITS[needed[2].upper()]):
            return False
        status, lines = self._hf(model, tell=lambda line: self.progress(f"{model.name} {line}"[-200:]))
        if status:
            said = docker_message("\n".join(lines))
            waits_for = WAITING_FOR_HUB if PASSING.search(said) else ""
            raise ServingError(f"Cannot fetch {model.name} from the hub: {said}", waits_for=waits_for)
        return True

    def _has_room(self, model: HubModel, needed: float) -> bool:
        free = shutil.disk_usage(next(path for path in (self.cache, *self.cache.parents) if path.is_dir())).free
        if needed <= free:
            return True
        kept = f"models--{model.name.replace('/', '--')}"
        old_bytes = 0
        with suppress(OSError), opened_folder(self.cache / "hub") as hub:
            old = [name for name in names_in(hub) if name.startswith("models--") and name != kept]
            old_bytes = sum(tree_bytes(hub, name) for name in old)
        if needed <= free + old_bytes:
            log(
                f"{model.name} needs {needed / GIB:.1f} GiB, but {free / GIB:.1f} GiB are free. The old model is deleted first."
            )
            return False
        raise ServingError(
            f"{model.name} needs {needed / GIB:.1f} GiB at {self.cache}, but only {free / GIB:.1f} GiB are free."
            f"{DISK_ADVICE}",
            retry=False,
        )

    def _hf(self, model: HubModel, *flags: str, tell: Callable[[str], None]) -> "tuple[int, Sequence[str]]":
        run_command(["docker", "rm", "-f", FETCH_CONTAINER])  # left by an agent that was killed
        argv = ["docker", "run", "--rm", f"--name={FETCH_CONTAINER}", "--net=host", "--entrypoint=hf", *HARDENED]
        # As root, which owns the hub cache and the files that the server reads there.
        argv += ["--read-only", "--tmpfs=/tmp", *self.options]
        argv += hub_cache_options(self.document)
        argv += [f"--env={name}={value}" for name, value in self.document.environment.items()]
        revision = [f"--revision={model.revision}"] if model.revision else []
        with secrets_option(self.secrets) as option:
            argv += [option, self.document.image, "download", model.name, *revision, "--exclude=original/*", *flags]
            try:
                return run_followed(argv, env={}, tell=tell, cancelled=self.cancelled)
            except SupersededError:
                run_command(["docker", "rm", "-f", FETCH_CONTAINER])
                raise
