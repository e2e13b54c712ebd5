"""The hub's answer to a server that is about to download a checkpoint, with the messages of huggingface_hub and transformers."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from localcloud.json_values import as_object
from localcloud.vllm.settings import RuntimeEnvironment

_LIMIT_S: Final = 30.0
_HUB: Final = "https://huggingface.co"
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

    @property
    def is_absent(self) -> bool:
        """Return whether the hub hides the repository from this caller."""
        return self.status == HTTPStatus.NOT_FOUND or self.message == "Invalid username or password."

    def of_server(self) -> str:
        """Return vLLM's output (huggingface_hub, utils/_http.py; transformers, utils/hub.py)."""
        api = f"{_HUB}/api/models/{self.model}"
        if self.code == _GATED:
            return (
                f"huggingface_hub.errors.GatedRepoError: {self.status} Client Error. (Request ID: Root=simulated)\n\n"
                f"Cannot access gated repo for url {_HUB}/{self.model}/resolve/main/config.json.\n{self.message}"
            )
        if self.code == _REVISION:
            return (
                f"huggingface_hub.errors.RevisionNotFoundError: {self.status} Client Error. (Request ID: Root=simulated)\n\n"
                f"Revision Not Found for url: {api}/revision/{quote(self.revision, safe='')}.\n{self.message}"
            )
        if self.is_absent:
            return (
                f"huggingface_hub.errors.RepositoryNotFoundError: {self.status} Client Error. (Request ID: Root=simulated)\n\n"
                f"Repository Not Found for url: {api}.\nPlease make sure you specified the correct `repo_id` and `repo_type`.\n"
                "If you are trying to access a private or gated repo, make sure you are authenticated and your token has the required "
                "permissions.\n"
                f"OSError: {self.model} is not a local folder and is not a valid model identifier listed on '{_HUB}/models'"
            )
        if self.status:
            reason = HTTPStatus(self.status).phrase
            kind = "Client" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "Server"
            return f"huggingface_hub.errors.HfHubHTTPError: {self.status} {kind} Error: {reason} for url: {api}\n{self.message}"
        return (
            f"OSError: We couldn't connect to '{_HUB}' to load the files, and couldn't find them in the cached files."
        )

    def of_command(self) -> str:
        """Return the output of `hf download` (huggingface_hub, cli/_errors.py)."""
        if self.code == _GATED:
            return f"Error: Access denied. Model '{self.model}' requires approval."
        if self.code == _REVISION:
            return f"Error: Revision not found in model '{self.model}'."
        if self.is_absent:
            return (
                f"Error: Model '{self.model}' not found.\nIf the repo is private, make sure you are authenticated and your token has the "
                "required permissions."
            )
        return f"Error: {self.of_server().partition('Error: ')[2]}"


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
