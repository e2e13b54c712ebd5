"""Options of `gemma init`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from gemma_serving.scripts.cli.options import JsonSwitch, Option

DEFAULT_WORKLOAD: Final = "in=700,out=300,users=8"
"""Eight concurrent users of a chat: the workload of the shipped stack `l4-qat`."""


def _address(text: str) -> str:
    from gemma_serving.planning.settings.observability import EMAIL  # noqa: PLC0415 - only if an address is given

    try:
        return EMAIL(text)
    except ValueError:
        raise ValueError("one address such as name@example.com") from None


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of the command."""

    name: Annotated[
        str, Option("Stack name: up to 30 lowercase letters, digits and hyphens, a letter first.", positional=True)
    ] = "dev"
    model: Annotated[
        str, Option("Hugging Face id, or a size of Gemma 4: E2B, E4B, 12B, 26B-A4B, 31B.", metavar="M")
    ] = ""
    like: Annotated[
        str | None,
        Option("Copy the settings file of this stack, or of an example in examples/stacks.", metavar="STACK"),
    ] = None
    source: Annotated[
        Path | None,
        Option(
            "Take the vLLM server of a file, as gemma plan --from reads it. Its secrets are not written.",
            flag="--from",
            metavar="FILE",
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            "config.json of a fine-tune of Gemma 4, or its folder, inside the project. --model is its id.",
            metavar="FILE",
        ),
    ] = None
    accelerator: Annotated[
        str | None,
        Option("Accelerator, such as v6e-4 or L4. Default: the cheapest that meets the limits.", metavar="A"),
    ] = None
    budget: Annotated[
        float | None, Option("Maximum price per slice or instance, in USD per hour.", metavar="USD", above=0)
    ] = None
    workload: Annotated[
        str | None,
        Option(
            f"Workload of one slice or instance. docs/planning.md lists the keys. Default: {DEFAULT_WORKLOAD}.",
            metavar="LIST",
        ),
    ] = None
    region: Annotated[tuple[str, ...], Option("Allowed region; repeatable.", metavar="REGION", repeated=True)] = ()
    email: Annotated[
        str | None, Option("E-mail address that alerts are sent to. Default: none.", metavar="ADDRESS", parse=_address)
    ] = None
    secrets_key: Annotated[
        str | None,
        Option(
            "Cloud KMS key for the secrets: projects/P/locations/L/keyRings/R/cryptoKeys/K. Default: a passphrase.",
            metavar="KEY",
        ),
    ] = None
    force: Annotated[bool, Option("Overwrite an existing file, except secrets, salt and keys of other namespaces.")] = (
        False
    )
    ci: Annotated[
        bool,
        Option(
            "In a new folder, also write the workflows of GitHub: preview, deploy, drift, teardown and guard (docs/ci.md)."
        ),
    ] = False
    upgrade: Annotated[
        bool, Option("Only write wheels/ again, with the wheels and the locks of the installed version.")
    ] = False
    as_json: JsonSwitch = False
