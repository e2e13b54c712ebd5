"""Fetch a document's models from the Hugging Face hub, while the image is pulled and the old server still serves."""

import hashlib
import http.client
import json
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, cast

from gemma_serving.contracts.guest_attributes import WAITING_FOR_HUB
from gemma_serving.contracts.server_errors import is_final
from gemma_serving.contracts.serving_document import BucketWeights, ServingDocument
from gemma_serving.vm_agent.base import (
    GIB,
    HUB_CACHE_VARIABLE,
    HUB_ENDPOINT_VARIABLE,
    ServingError,
    SupersededError,
    environment_variable,
    hub_cache,
    log,
)
from gemma_serving.vm_agent.cloud import CONNECTION_ERRORS, MetadataClient, attempts, is_passing
from gemma_serving.vm_agent.containers import DISK_ADVICE
from gemma_serving.vm_agent.mounted import (
    made_folder,
    names_in,
    open_mounted,
    opened_folder,
    set_file,
    tree_bytes,
)
from gemma_serving.vm_agent.weights import SAFE_NAME, StoredObject, WeightsCopy, size_of

HUB_ENDPOINT = "https://huggingface.co"
DEFAULT_REVISION = "main"
OWN_DOWNLOAD = frozenset(
    {HUB_CACHE_VARIABLE, "HF_HUB_CACHE", "HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE", "HTTPS_PROXY", "https_proxy"}
)
"""Variables of a document whose server downloads in a way or to a folder of its own, or not at all."""
EXCLUDED = "original/"
"""Folder with a second copy of the weights, in the format of their training."""
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot")
"""Formats that vLLM does not load from a repository with safetensors."""
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
HUB_CHUNK_BYTES = 64 * 1024 * 1024
"""Each chunk is one request, and the hub limits requests: 3,000 in 5 minutes without a token (huggingface.co/docs/hub/rate-limits)."""
MOST_LISTED_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
HUB_TIMEOUT_S = 60.0
"""Time without a byte after which a request has failed."""
BODY_LIMIT_S = 300.0
"""Maximum time of one response."""
WRONG_TOKEN = "Invalid credentials in Authorization header"  # noqa: S105 - the hub's message
HUB_ERRORS = {
    "GatedRepo": "Cannot access gated repo {model}. ",
    "RepoNotFound": "Repository Not Found for url {model}. ",
    "RevisionNotFound": "Revision Not Found for url {model}. ",
}
"""huggingface_hub's message for each X-Error-Code (utils/_http.py), by which contracts.server_errors knows a final failure."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

CHECKED: "set[tuple[str, int, int]]" = set()
"""Digest, inode and last change in ns of each content of the cache that this process has read. A container cannot set the time of a change."""


@dataclass(frozen=True)
class HubModel:
    """A hub repository and its revision; an empty revision is the default branch."""

    name: str
    revision: str = ""


def cache_name(model: HubModel) -> str:
    """Return the name of a repository's folder in the hub's cache."""
    return f"models--{model.name.replace('/', '--')}"


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


def fetched_models(document: ServingDocument) -> "tuple[HubModel, ...]":
    """Return the models that the server expects in the machine's hub cache."""
    words = [*document.command, *document.arguments]
    downloads_itself = OWN_DOWNLOAD & set(document.environment) or flag_value(words, "--download-dir")
    if document.weights is not None or downloads_itself or flag_value(words, "--load-format") == "dummy":
        return ()
    return hub_models(document)


class HubCopyError(ServingError):
    """The hub did not send a file."""


@dataclass
class HubCopy(WeightsCopy):
    """Copy of a repository's files to the folder `weights.path`, each with the name that the hub's cache gives its content.

    `weights.uri` is the repository. The token is sent to the hub only, and not to the storage to which it redirects.
    """

    token: str = field(default="", repr=False)
    endpoint: str = HUB_ENDPOINT
    revision: str = ""
    blobs: Path = Path()
    """Folder of the hub's cache. Its files are not downloaded again."""
    commit: str = ""
    files: "dict[str, str]" = field(default_factory=dict[str, str])
    """After `missing`: each file of the repository, and the name of its content."""

    def _list(self) -> "list[StoredObject]":
        revision = self.revision or DEFAULT_REVISION
        quoted = urllib.parse.quote(revision, safe="")
        answer = self._answer(f"api/models/{self.weights.uri}/revision/{quoted}?blobs=true", MOST_LISTED_BYTES)
        try:
            listed = json.loads(answer)
            self.commit = str(listed["sha"])
            found = [hub_object(raw) for raw in listed["siblings"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise HubCopyError(f"The hub's list of {self.weights.uri} cannot be read: {error!r}.") from None
        unsafe = [name for name in (revision, *(item.name for item in found)) if not SAFE_NAME.fullmatch(name)]
        if unsafe or not COMMIT.fullmatch(self.commit):
            raise HubCopyError(
                f"The hub's list of {self.weights.uri} has an invalid name: {[*unsafe, self.commit][0][:200]!r}."
            )
        others = OTHER_WEIGHTS if any(item.name.endswith(".safetensors") for item in found) else ()
        found = [item for item in found if not item.name.startswith(EXCLUDED) and not item.name.endswith(others)]
        self.files = {item.name: item.relative for item in found}
        return [*{item.relative: item for item in found}.values()]

    def _is_complete(self, target: Path, item: StoredObject) -> bool:
        return self._is_in_cache(item) or super()._is_complete(target, item)

    def _is_in_cache(self, item: StoredObject) -> bool:
        """Return whether the cache has the content. The container could change it, so it is read unless this process has read it since."""
        with suppress(OSError), open_mounted(self.blobs / item.relative) as file:
            about = os.fstat(file.fileno())
            mark = item.relative, about.st_ino, about.st_ctime_ns
            if about.st_size == item.size and mark not in CHECKED and self._digest(file, item) == item.relative:
                CHECKED.add(mark)
            return about.st_size == item.size and mark in CHECKED
        return False

    def _digest(self, file: BinaryIO, item: StoredObject) -> str:
        """Return the digest of an opened content. Raises OSError, and SupersededError if the copy was cancelled."""
        self.progress(f"checking {item.name}")
        function, first = item.hashed
        digest = hashlib.new(function, first, usedforsecurity=False)
        while piece := file.read(PIECE_BYTES):
            if self.cancelled():
                raise SupersededError
            digest.update(piece)
        return digest.hexdigest()

    def _range(self, item: StoredObject, start: int, size: int) -> bytes:
        path = f"{self.weights.uri}/resolve/{self.commit}/{urllib.parse.quote(item.name)}"
        return self._answer(path, size, start)

    def _answer(self, path: str, most_bytes: int, start: "int | None" = None) -> bytes:
        """Return the body of a response, or these bytes of a file. Raises HubCopyError, and SupersededError if it was cancelled."""
        problem = HubCopyError("")
        headers = {} if start is None else {"Range": f"bytes={start}-{start + most_bytes - 1}"}
        for _ in attempts(self.metadata.clock):
            if self.cancelled():
                raise SupersededError
            asked = urllib.request.Request(f"{self.endpoint}/{path}", headers=headers)  # noqa: S310 - https, or the document's
            if self.token:
                asked.add_unredirected_header("Authorization", f"Bearer {self.token}")
            try:
                with urllib.request.urlopen(asked, timeout=HUB_TIMEOUT_S) as response:  # noqa: S310 - the same
                    if start and response.status != HTTPStatus.PARTIAL_CONTENT:
                        raise HubCopyError(
                            f"Cannot fetch {self.weights.uri}: the hub's storage sent no range of a file"
                        )
                    return self._body(response, most_bytes)
            except urllib.error.HTTPError as error:
                with error:
                    problem = hub_error(self.weights.uri, error, is_hub=error.url.startswith(f"{self.endpoint}/"))
                if not problem.waits_for:
                    break
            except CONNECTION_ERRORS as error:
                problem = HubCopyError(
                    f"Cannot fetch {self.weights.uri} from the hub: {error}", waits_for=WAITING_FOR_HUB
                )
        raise problem

    def _body(self, response: "http.client.HTTPResponse", most_bytes: int) -> bytes:
        """Read a body in pieces, so a slow host does not delay the end of a document."""
        pieces: list[bytes] = []
        left, deadline = most_bytes, self.metadata.clock.now() + BODY_LIMIT_S
        while left > 0 and (piece := response.read(min(left, PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
            if self.cancelled():
                raise SupersededError
            if self.metadata.clock.now() > deadline:
                raise TimeoutError(f"no complete response within {BODY_LIMIT_S:.0f} s")
        return b"".join(pieces)


def hub_object(raw: "Mapping[str, Any]") -> StoredObject:
    """Return a file of the hub's list. Raises KeyError, TypeError, ValueError and AttributeError."""
    large = raw.get("lfs")
    sha256, git_id = (str(large["sha256"]), "") if large else ("", str(raw["blobId"]))
    digest = sha256 or git_id
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest[:80]!r} is no digest")
    return StoredObject(str(raw["rfilename"]), digest, size_of((large or raw)["size"]), digest, "", sha256, git_id)


def hub_error(model: str, error: urllib.error.HTTPError, *, is_hub: bool) -> HubCopyError:
    """Return the error of a response, of the hub or of its storage."""
    waits_for = WAITING_FOR_HUB if is_passing(error.code) else ""
    if not is_hub:
        return HubCopyError(f"Cannot fetch {model}: status {error.code} of the hub's storage", waits_for=waits_for)
    code, said = error.headers.get("X-Error-Code", ""), error.headers.get("X-Error-Message", "") or str(error.reason)
    if error.code == HTTPStatus.UNAUTHORIZED and not code and said != WRONG_TOKEN:
        code = "RepoNotFound"  # without access, the hub does not tell whether it exists
    words = HUB_ERRORS.get(code, "").format(model=model)
    kind = "Client" if error.code < HTTPStatus.INTERNAL_SERVER_ERROR else "Server"
    text = f"Cannot fetch {model} from the hub: {error.code} {kind} Error: {words}{said[:300]}"
    return HubCopyError(text, retry=not is_final(text), status=error.code, waits_for=waits_for)


@dataclass
class HubFetch:
    """Download of a document's models to the machine's hub cache, without its image.

    The server's container can write to the cache. Files are downloaded beside it and moved there, and no link is followed.
    """

    document: ServingDocument
    secrets: Callable[[], Mapping[str, str]]
    progress: Callable[[str], None]
    cancelled: Callable[[], bool]
    cache: Path = field(default_factory=hub_cache)
    is_trial: bool = False
    """The document replaces one that serves."""
    metadata: MetadataClient = field(default_factory=MetadataClient)

    def run(self, known: "Collection[HubModel]" = ()) -> bool:
        """Fetch the models that are not known to be there. Return False if they do not fit on the disk next to the old ones.

        Without a trial, the server downloads the rest after an error that is not final.
        Raises ServingError, OSError if the disk is full or the cache is not a tree of folders, and SupersededError if it was cancelled.
        """
        models = [model for model in fetched_models(self.document) if model not in known]
        with suppress(OSError):
            for folder in set(self._beside.iterdir()) - {self._beside / cache_name(model) for model in models}:
                shutil.rmtree(folder, ignore_errors=True)
        try:
            return all(self._fetch(model) for model in models)
        except HubCopyError as error:
            if self.is_trial or not error.retry:
                raise
            log(f"The server downloads its model itself: {error}")
            return True

    @property
    def _beside(self) -> Path:
        return self.cache.with_name(f"{self.cache.name}-fetched")

    def _fetch(self, model: HubModel) -> bool:
        self.progress(model.name)
        name, variables = cache_name(model), {**self.document.environment, **self.secrets()}
        given = variables.get(HUB_ENDPOINT_VARIABLE) or environment_variable(HUB_ENDPOINT_VARIABLE, HUB_ENDPOINT)
        copy = HubCopy(
            self.metadata,
            BucketWeights(model.name, str(self._beside / name)),
            lambda detail: self.progress(f"{model.name} {detail}"),
            self.cancelled,
            HUB_CHUNK_BYTES,
            token=variables.get("HF_TOKEN", ""),
            endpoint=given.rstrip("/"),
            revision=model.revision,
            blobs=self.cache / "hub" / name / "blobs",
        )
        missing = copy.missing()
        if not self._has_room(model, sum(item.size for item in missing)):
            return False
        copy.copy(missing)
        self._place(copy, name)
        shutil.rmtree(copy.weights.path)
        return True

    def _place(self, copy: HubCopy, name: str) -> None:
        """Move the files into the cache, replace the snapshot by links to them, and name the revision. Raises OSError.

        What else the container wrote there leaves the cache: other files of the snapshot, and `.no_exist`, the hub library's memory of
        files that do not exist. After a crash, the next start finds the old snapshot, none, or the new one.
        """
        self.cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(copy.weights.path, "snapshot")
        taken = Path(copy.weights.path, "taken")
        for left in (fresh, taken):
            shutil.rmtree(left, ignore_errors=True)
        taken.mkdir(parents=True)
        fresh.mkdir()
        for path, blob in copy.files.items():
            (fresh / path).parent.mkdir(parents=True, exist_ok=True)
            (fresh / path).symlink_to(f"{'../' * (path.count('/') + 2)}blobs/{blob}")
        with opened_folder(self.cache) as cache, ExitStack() as opened:
            folder = made_folder(opened, cache, "hub", name)
            blobs, snapshots = made_folder(opened, folder, "blobs"), made_folder(opened, folder, "snapshots")
            for blob in set(copy.files.values()):
                with suppress(FileNotFoundError):  # the cache had it
                    os.rename(f"{copy.weights.path}/{blob}", blob, dst_dir_fd=blobs)
            for other in set(names_in(folder)) - {"blobs", "snapshots", "refs"}:
                os.rename(other, taken / other, src_dir_fd=folder)
            with suppress(FileNotFoundError):
                os.rename(copy.commit, taken / "snapshots", src_dir_fd=snapshots)
            os.rename(fresh, copy.commit, dst_dir_fd=snapshots)
            if copy.revision != copy.commit:
                *parents, last = (copy.revision or DEFAULT_REVISION).split("/")
                set_file(made_folder(opened, folder, "refs", *parents), last, copy.commit)

    def _has_room(self, model: HubModel, needed: float) -> bool:
        free = shutil.disk_usage(next(path for path in (self.cache, *self.cache.parents) if path.is_dir())).free
        if needed <= free:
            return True
        kept = cache_name(model)
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
