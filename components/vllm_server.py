"""A vLLM server in a container: the same arguments on a Cloud Run instance and on a TPU machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import pulumi

from gemma_serving.components.checks import Input, arguments
from gemma_serving.components.stored_secret import Secret
from gemma_serving.planning.question.extra_arguments import plain_secrets
from gemma_serving.planning.question.server_flags import flag_table, parse_arguments
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.vllm_args import DEFAULT_PORT


@arguments
class VllmServer(Block):
    """Image, command line, environment and secrets of the server.

    A change is a new revision of a Cloud Run service, or restarts the server of a TPU machine in place.
    """

    image: Input[text.ImageByDigest]
    """Reference by digest, HOST/PATH@sha256:..., that the server's account can pull. A tag could be another image after a restart."""
    arguments: Sequence[Input[str]]
    """Words after `command`: a model's id on the hub or the folder of its weights, then flags, such as
    `["google/gemma-4-E2B-it", "--max-model-len=8192"]`."""
    command: Sequence[str] = ("vllm", "serve")
    """Command of the container, before its arguments."""
    port: text.Port = DEFAULT_PORT
    """Port of the server. Its flag `--port`, if given, must have the same."""
    environment: Mapping[text.Variable, str] = field(default_factory=dict[str, str])
    """Additional environment variables. They replace variables of the same name in `gemma_serving.planning.settings.vllm_args.vllm_environment`."""
    secrets: Mapping[text.Variable, Secret] = field(default_factory=dict[str, Secret])
    """Secret by its environment variable, such as `{"HF_TOKEN": token}`. The server's account must be one of its readers."""
    uid: text.FromZero = 0
    """User that the image runs as, and that owns the files of a mount. vLLM's images run as root, 0."""
    gid: text.FromZero = 0
    """Group that the image runs as."""

    @property
    def needed(self) -> Sequence[pulumi.Resource]:
        """Resources that must exist before the server: one whose account cannot read its secrets never starts."""
        return [one for one in self.secrets.values() if isinstance(one, pulumi.Resource)]

    def problems(self) -> Iterator[str]:
        """Yield each contradiction, and each secret in plain text, with what to do."""
        words = [word if isinstance(word, str) else "" for word in self.arguments]  # outputs are not read
        read = parse_arguments(words, flag_table(None))
        for port in (one.value[-1] for one in read if one.name == "--port" and one.value):
            if port not in {"", str(self.port)}:
                yield f"`port` is {self.port}, but the flag --port is {port}. Set both to the same port"
        twice = sorted(self.environment.keys() & self.secrets.keys())
        if twice:
            yield f"`secrets` and `environment` both have {twice[0]}. Remove one of them"
        plain = plain_secrets(words, self.environment)
        if plain:
            yield (
                f"{plain[0] or 'a word'} in `arguments` or `environment` looks like a secret, which the state and Google would store in plain "
                "text. Revoke it, and pass another as HuggingFaceToken, ApiKeySecret or ExistingSecret in `secrets`"
            )
