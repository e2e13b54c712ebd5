"""A vLLM server in a container: the same arguments on a Cloud Run instance and on a TPU machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pulumi

from gemma_serving.components.stored_secret import ExistingSecret, StoredSecret
from gemma_serving.planning.settings.vllm_args import DEFAULT_PORT

_DIGEST: Final = "@sha256:"
_PORT_FLAG: Final = "--port"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """Image, command line, environment and secrets of the server.

    A change is a new revision of a Cloud Run service, or restarts the server of a TPU machine in place.
    """

    image: pulumi.Input[str]
    """Reference by digest, HOST/PATH@sha256:..., that the server's account can pull. A tag could be another image after a restart."""
    arguments: Sequence[pulumi.Input[str]]
    """Words after `command`: a model's id on the hub or the folder of its weights, then flags, such as
    `["google/gemma-4-E2B-it", "--max-model-len=8192"]`."""
    command: Sequence[str] = ("vllm", "serve")
    """Command of the container, before its arguments."""
    port: int = DEFAULT_PORT
    """Port of the server. Its flag `--port`, if given, must have the same."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Additional environment variables. They replace variables of the same name in `gemma_serving.planning.settings.vllm_args.vllm_environment`."""
    secrets: Mapping[str, StoredSecret | ExistingSecret] = field(
        default_factory=dict[str, StoredSecret | ExistingSecret]
    )
    """Secret by its environment variable, such as `{"HF_TOKEN": token}`. The server's account must be one of its readers."""
    uid: int = 0
    """User that the image runs as, and that owns the files of a mount. vLLM's images run as root, 0."""
    gid: int = 0
    """Group that the image runs as."""

    def problems(self) -> Iterator[str]:
        """Yield each invalid value: argument, value, what is allowed, and what to do."""
        if isinstance(self.image, str) and _DIGEST not in self.image:
            yield f'`server.image` is "{self.image}"; expected a reference by digest. Replace its tag with "{_DIGEST}..."'
        for flag in _ports(self.arguments):
            if flag != str(self.port):
                yield f"`server.port` is {self.port}, but the flag {_PORT_FLAG} is {flag}. Set both to the same port"
        twice = sorted(self.environment.keys() & self.secrets.keys())
        if twice:
            yield f"`server.secrets` and `server.environment` both have {twice[0]}. Remove one of them"
        for name, number in (("uid", self.uid), ("gid", self.gid)):
            if number < 0:
                yield f"`server.{name}` is {number}; expected 0 or more. Set the number that the image runs as"


def _ports(arguments: Sequence[pulumi.Input[str]]) -> Iterator[str]:
    """Yield the value of each flag for the port. Outputs are not read."""
    words = [word for word in arguments if isinstance(word, str)]
    yield from (word.partition("=")[2] for word in words if word.startswith(f"{_PORT_FLAG}="))
    yield from (value for flag, value in pairwise(words) if flag == _PORT_FLAG)
