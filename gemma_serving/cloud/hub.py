"""Facts about a checkpoint from the Hugging Face Hub, without its weights."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

from gemma_serving.cloud.model_files import CONFIG, INDEX, read_object
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.data.checkpoints import other_ids

_LIMIT_S: Final = 30.0
_SHORT_LIMIT_S: Final = 5.0
"""Timeout after which the command continues without the hub's response."""
_WEIGHTS: Final = ".safetensors"
_COPIES: Final = ("consolidated", "original")
"""Prefixes of files that repeat the weights in another layout; vLLM reads the others."""


@contextmanager
def hub_errors(model: str, otherwise: str) -> Generator[None]:
    """Convert errors of the hub's client into a ScriptError of one sentence; `otherwise` is the fix if the hub cannot be reached.

    Such an error is an unreachable hub, an unknown model or revision, or a denied permission.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415 - slow to load

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise ScriptError(
            f"The Hugging Face Hub rejected {model} with HTTP {status}: {_advice(error, status, model, otherwise)}."
        ) from None
    except HFValidationError:
        raise ScriptError(f'"{model}" is not a valid id of the Hugging Face Hub: expected ORG/NAME.') from None
    except (OSError, *lost_connections()) as error:
        raise ScriptError(f"The Hugging Face Hub cannot be reached ({type(error).__name__}); {otherwise}.") from None


def lost_connections() -> tuple[type[Exception], ...]:
    """Return the errors of the hub's client that another attempt may resolve.

    Threads share a client, which each of them closes when it gets no connection. Requests on it then raise
    RuntimeError, and AttributeError at that moment (huggingface_hub 2.4).
    """
    return connection_error(), RuntimeError, AttributeError


def connection_error() -> type[Exception]:
    """Return the base of the errors of the HTTP library that the hub's client uses, which it passes on."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - slow to load

    return next(kind for kind in HfHubHTTPError.__bases__ if kind is not OSError)


def main_commit(
    model: str, otherwise: str = "try again later", *, token: str | bool | None = None
) -> Present[str] | Unknown:
    """Return the commit of a repository's main branch, or why the hub did not state it: `denied` if it is absent or private.

    `otherwise` is the fix if the hub cannot be reached. `token`: None sends this machine's own, and False none.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - slow to load

    try:
        with hub_errors(model, otherwise):
            commit = (
                HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(model, timeout=_SHORT_LIMIT_S, token=token).sha
            )
    except ScriptError as error:
        return Unknown(str(error).rstrip("."), cause="denied" if _is_hidden(error.__context__) else "other")
    return Present(commit) if commit else Unknown(f"The hub returned no commit of {model}")


def _is_hidden(error: BaseException | None) -> bool:
    """Return whether the hub does not show a repository to this caller: 404 with a valid token, 401 without one."""
    from huggingface_hub import get_token  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - slow to load

    if not isinstance(error, HfHubHTTPError):
        return False
    return error.response.status_code == (HTTPStatus.NOT_FOUND if get_token() else HTTPStatus.UNAUTHORIZED)


def real_sizes(info: object) -> Mapping[str, int]:
    """Return the sizes of real files by name, which the local cloud's hub states in addition to shrunk ones; otherwise empty."""
    about = getattr(info, "simulated", None)
    sizes = as_mapping(as_mapping(about).get("realBytes"))
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _advice(error: OSError, status: int, model: str, otherwise: str) -> str:
    """Return the fix of a rejection. The hub's text may contain a signed address, so it is not repeated."""
    from huggingface_hub import get_token  # noqa: PLC0415 - slow to load
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError  # noqa: PLC0415

    if isinstance(error, GatedRepoError):
        return f"accept its terms at https://huggingface.co/{model}, then set HF_TOKEN to a token of that account"
    if isinstance(error, RevisionNotFoundError):
        return f"the revision does not exist; see its branches and commits at https://huggingface.co/{model}"
    if status == HTTPStatus.UNAUTHORIZED and get_token():
        # With a valid token the hub returns 404 for a missing or private repository.
        origin = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "the token of `hf auth login`"
        return (
            f"{origin} is invalid or has expired; create a token at https://huggingface.co/settings/tokens "
            "and set HF_TOKEN to it, or remove the token (public models need none)"
        )
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND}:
        near = other_ids(model)
        nearest = f" (nearest known: {', '.join(near)})" if near else ""
        return f"it does not exist or is private; check the name{nearest}, or set HF_TOKEN to a token with read access"
    if status == HTTPStatus.FORBIDDEN:
        return f"a storage link expired, or the token has no read access; {otherwise}"
    return f"it is overloaded or failing; wait a few minutes, or {otherwise}"


def config_of(model: str) -> tuple[Mapping[str, object], Mapping[str, object] | None]:
    """Return the config.json of a checkpoint's main branch, and the index of its safetensors files; None if it has no such files.

    Only these two files are downloaded. Without an index, the size of the weights replaces it. The token is HF_TOKEN or the login of the
    hub's client. Raises ScriptError as `hub_errors` does and without a config.json, and PlanningError if it is not a JSON object.
    """
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415 # pyright: ignore[reportUnknownVariableType] - slow to load, partly untyped

    with hub_errors(model, "pass --config FILE with the config.json of the checkpoint"):
        info = HfApi().model_info(model, files_metadata=True, timeout=_LIMIT_S)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        if CONFIG not in sizes:
            raise ScriptError(f"{model} has no {CONFIG} on the hub. vLLM cannot load it.")
        config = read_object(Path(hf_hub_download(model, CONFIG, revision=info.sha)))
        if INDEX in sizes:
            return config, read_object(Path(hf_hub_download(model, INDEX, revision=info.sha)))
    sizes |= real_sizes(info)
    weights = {name: size for name, size in sizes.items() if name.endswith(_WEIGHTS) and not name.startswith(_COPIES)}
    return config, {"metadata": {"total_size": sum(weights.values())}} if sum(weights.values()) else None
