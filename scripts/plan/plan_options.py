"""Options of `gemma plan`. They import nothing of the planner, so `--help` and wrong options respond immediately."""

import re
from dataclasses import dataclass, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final

from gemma_serving.scripts.cli.options import Option, Rare

NONE: Final = "none"
"""The value of `--set` that unsets a field."""


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """Deployment."""

    stack: Annotated[str | None, Option("Plan the settings of Pulumi.STACK.yaml.", metavar="STACK")] = None
    model: Annotated[str | None, Option("Hugging Face id, e.g. google/gemma-4-12B-it.", metavar="ID")] = None
    accelerator: Annotated[
        str | None,
        Option(
            "TPU slice or GPU, such as v6e-4, L4 or H100. A wrong name lists all. With --gke: more GPUs, e.g. L4x4.",
            metavar="NAME",
        ),
    ] = None
    platform: Annotated[str | None, Rare("tpu-vm, cloud-run or gce. Default: the accelerator's usual platform.")] = None
    quantization: Annotated[str | None, Rare("bf16, fp8 or w4a16. Default: the checkpoint's.")] = None
    vllm: Annotated[
        str | None,
        Rare(
            "vLLM release of the image, e.g. 0.25.1. Default: the release of this project's image.", metavar="VERSION"
        ),
    ] = None
    set: Annotated[
        tuple[str, ...],
        Option(
            "Any key of docs/reference/settings.md, such as vllm.maxModelLen=8192 or cloudRun.memory=32Gi. "
            "With a stack, the file stays as it is. "
            "The value none unsets a key. Repeatable.",
            metavar="KEY=VALUE",
            repeated=True,
        ),
    ] = ()
    config: Annotated[
        Path | None, Rare("config.json of an unlisted model: a file or a folder.", metavar="PATH", person=True)
    ] = None
    workload: Annotated[
        str | None,
        Option(
            "Client load, e.g. in=4000,out=500,users=32. Replaces the stack's workload. Keys: in, out, users, rate, prefix, "
            "images, imageTokens, videos, audio, adapters, accepted.",
            metavar="LIST",
        ),
    ] = None
    from_hub: Annotated[
        bool, Rare("Read the config of --model or of the stack's model from Hugging Face.", person=True)
    ] = False
    save: Annotated[Path | None, Rare("Save the config read by --from-hub.", metavar="FOLDER", person=True)] = None
    draft_config: Annotated[
        Path | None, Option("config.json of a draft model that is not in the catalog.", hidden=True, person=True)
    ] = None
    image: Annotated[
        str | None,
        Rare(
            "Server image. Default: the accelerator's usual image. A wrong name lists all. With --gke: REPOSITORY@sha256:DIGEST.",
            metavar="NAME",
        ),
    ] = None
    text_only: Annotated[bool, Rare("Serve text only, without memory for image, video and audio encoders.")] = False
    device: Annotated[
        str | None,
        Option(
            "Custom GPU instead of --accelerator: memory=24GiB,bandwidth=936GB/s,tflops=71. Optional: "
            "count=2, link=31.5GB/s, usable=23.6GiB, name=RTX 3090, usd=0.3/h. With --compare: an added row.",
            metavar="FIGURES",
            hidden=True,
        ),
    ] = None
    prices: Annotated[Path | None, Rare("JSON file with prices that replace the shipped prices.", person=True)] = None


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Comparison of accelerators."""

    compare: Annotated[
        tuple[str, ...] | None,
        Option("Plan the model on every accelerator, or compare stacks.", metavar="STACK", many=True),
    ] = None
    min_context: Annotated[int | None, Rare("Minimum context length of a request.", metavar="TOKENS", least=1)] = None
    min_concurrency: Annotated[float | None, Rare("Minimum number of concurrent max-length requests.", above=0)] = None
    max_usd_per_hour: Annotated[float | None, Rare("Maximum price, in USD per hour.", metavar="USD", above=0)] = None


@dataclass(frozen=True, kw_only=True)
class Solving:
    """Search for the cheapest deployments."""

    solve: Annotated[
        bool,
        Option(
            "Search flex-start TPU VMs and Cloud Run GPUs for --workload. Narrow it with --model (an id, or 12B), --accelerator "
            "and more options."
        ),
    ] = False
    max_ttft_s: Annotated[
        float | None, Rare("With --solve: maximum typical time to first token.", metavar="SECONDS", above=0)
    ] = None
    max_tpot_s: Annotated[
        float | None, Rare("With --solve: maximum typical time per output token.", metavar="SECONDS", above=0)
    ] = None
    region: Annotated[
        tuple[str, ...], Rare("With --solve: only this region. Repeatable.", metavar="REGION", repeated=True)
    ] = ()
    rows: Annotated[int, Rare("With --solve: rows of the table.", metavar="N", least=1)] = 5


THREE_PROGRAMS: Final = "default"
ALL_PROGRAMS: Final = "all"


def _programs(text: str) -> str:
    """Return the programs to compile. Raises ValueError with the allowed values, such as for a stack's name."""
    if text not in {THREE_PROGRAMS, ALL_PROGRAMS}:
        raise ValueError("all, or no value for three programs. A stack comes first: gemma plan STACK --compile")
    return text


@dataclass(frozen=True, kw_only=True)
class Judging:
    """Google's compiler as judge."""

    compile: Annotated[
        str | None,
        Rare(
            "Build the stack's TPU server with vLLM's own code and Google's compiler, on this machine and without a TPU, and compare it with "
            "the plan. Compiles the largest step, the smallest and the sampler; with all, each program.",
            metavar=ALL_PROGRAMS,
            bare=THREE_PROGRAMS,
            parse=_programs,
            person=True,
        ),
    ] = None
    yes: Annotated[bool, Rare("With --compile: install the compiler without a question.", person=True)] = False


def _replicas(text: str) -> tuple[int, int]:
    """Return the minimum and the maximum. Raises ValueError with the allowed values."""
    found = re.fullmatch("([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ValueError("MIN:MAX with whole numbers from 1 to 9999, such as 1:3")
    return int(found[1]), int(found[2])


def _object_name(text: str) -> str:
    """Return the name of a Kubernetes object. Raises ValueError with the allowed form."""
    if not re.fullmatch("[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", text):
        raise ValueError("up to 63 lower-case letters, digits, hyphens and dots")
    return text


def _callers(text: str) -> tuple[str, ...]:
    """Return namespaces and ranges of addresses. Raises ValueError with the allowed form."""
    try:
        return tuple(str(ip_network(one)) if "/" in one else _object_name(one) for one in text.split(","))
    except ValueError:
        raise ValueError("namespaces and ranges of addresses, such as chat,10.1.0.0/23") from None


@dataclass(frozen=True, kw_only=True)
class GkeChoices:
    """The server on GKE."""

    gke: Annotated[
        bool, Option("Print the stack's server as Kubernetes objects for GKE in YAML, and the findings on stderr.")
    ] = False
    replicas: Annotated[
        tuple[int, int] | None,
        Rare(
            "With --gke: replicas. With two numbers, an autoscaler chooses. Default: 1:1.",
            metavar="MIN:MAX",
            parse=_replicas,
        ),
    ] = None
    spare_node: Annotated[bool, Rare("With --gke: a change may use one node more, instead of one replica less.")] = (
        False
    )
    compute_class: Annotated[
        str | None, Rare("With --gke: ComputeClass that chooses nodes.", metavar="NAME", parse=_object_name)
    ] = None
    gateway: Annotated[
        str | None,
        Rare("With --gke: Gateway whose HTTPS listener serves the replicas.", metavar="NAME", parse=_object_name),
    ] = None
    callers: Annotated[
        tuple[str, ...] | None,
        Rare("With --gke: only these namespaces and ranges of addresses may call.", metavar="LIST", parse=_callers),
    ] = None


def given_options(options: Any) -> list[str]:  # noqa: ANN401 - any dataclass of options
    """Return the options that differ from their defaults, without `--`. The value `none` is a default."""
    values = [(field, getattr(options, field.name)) for field in fields(options)]
    return [field.name.replace("_", "-") for field, value in values if value not in {field.default, NONE}]
