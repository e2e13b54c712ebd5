"""Rules for a stack's exposure: its provider, the server's callers, media that it reads for them, programs in a bucket."""

from collections.abc import Mapping
from typing import Final

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.exposure import inner_domains, open_domains
from gemma_serving.planning.question.server_flags import ServerArgument
from gemma_serving.planning.rules.arguments import arguments_named, kept_arguments
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.fields import file_key
from gemma_serving.planning.units import number_of

_RUNS: Final = "runs Python code that it names"
_OPENS: Final[Mapping[str, str]] = {
    "--allowed-local-media-path": "allows callers to read files of the container",
    "--allowed-origins": "allows web pages to call the server from their visitors' browsers",
    "--config": "reads more arguments from a file that the plan does not read",
    "--ec-transfer-config": "exchanges the encoder's cache with other servers",
    "--enable-fault-tolerance": "adds paths that pause the engine and change its size",
    "--enable-log-requests": "writes each request to the log",
    "--enable-mm-embeds": "loads tensors that a caller sends",
    "--enable-prompt-embeds": "loads tensors that a caller sends",
    "--enable-scale-out": "adds paths that run parts of a request for other servers",
    "--enable-tokenizer-info-endpoint": "shows callers the tokenizer and the chat template",
    "--hf-config-path": "reads the model's config.json from another repository",
    "--io-processor-plugin": _RUNS,
    "--kv-events-config": "publishes the tokens of all prompts on a port",
    "--kv-transfer-config": "exchanges the KV cache with other servers",
    "--logits-processors": _RUNS,
    "--middleware": "runs code before the server's own checks",
    "--model-class-overrides": _RUNS,
    "--otlp-traces-endpoint": "sends a trace of each request to another server",
    "--profiler-config": "adds paths that start and stop a profiler",
    "--reasoning-parser-plugin": _RUNS,
    "--scheduler-cls": _RUNS,
    "--tokens-only": "adds paths that run parts of a request for other servers",
    "--tool-parser-plugin": _RUNS,
    "--tool-server": "calls tools for every caller",
    "--trust-request-chat-template": "runs a chat template that a caller sends",
    "--trust-request-mm-kwargs": "lets a caller set how images are processed, and so their memory",
    "--worker-cls": _RUNS,
    "--worker-extension-cls": _RUNS,
}
"""Effect of each flag that opens a server, as the end of a sentence."""
_API_SERVERS: Final = "--api-server-count"
_UNREACHED: Final[Mapping[str, str]] = {
    _API_SERVERS: "starts no HTTP server",
    "--grpc": "serves gRPC, which checks no API key",
    "--grpc-port": "exits, because only its Rust frontend has that port",
    "--headless": "starts no HTTP server",
    "--ssl-certfile": "serves HTTPS",
    "--ssl-keyfile": "serves HTTPS",
    "--uds": "listens on a Unix socket",
}
"""Effect of each flag with which a server does not answer by HTTP on its port (vLLM's entrypoints/cli/serve.py, launcher.py and cli_args.py)."""
_CLOSED: Final = {"--allowed-origins": ("[]",), "--allowed-local-media-path": ("",)}
"""Values with which these flags open nothing."""


@rule("SEC12")
def _provider(subject: Subject) -> RuleResult | None:
    found = subject.resolved.question.settings.provider_keys
    if not found:
        return None
    return RuleResult(
        f"{', '.join(found)} {'is' if len(found) == 1 else 'are'} set. Of the provider gcp, a stack needs only project, region and "
        "zone. The others can send your Google token to another server, or act as another account.",
        remedies=(change("provider_keys", ()),),
    )


@rule("SEC02")
def _public(subject: Subject) -> RuleResult | None:
    question, cost = subject.resolved.question, subject.cost
    if not question.cloud_run.public:
        return None
    at_most = f"${cost.most_usd:,.0f} ({cost.most_usd_basis})"
    limit = "" if question.settings.max_usd is not None else " No maxUsd limits the cost."
    if not question.facts.has_api_key:
        return RuleResult(
            f"The endpoint is public: anyone can use it, at a cost of up to {at_most}.{limit}",
            remedies=(change("cloud_run.public", False),),
            advice="List the callers instead, or accept this finding, with maxUsd and a guard (docs/costs.md).",
        )
    return RuleResult(
        "The endpoint is reachable from the internet. Every path except /health requires the API key, but any "
        f"request can start an instance and keep it running, at a cost of up to {at_most}.{limit}",
        severity="warn" if question.settings.max_usd is not None else "block",
        remedies=(change("cloud_run.public", False),),
        advice="Or keep it public and set maxUsd, which a scheduled guard enforces (docs/costs.md).",
    )


@rule("SEC05")
def _unreached(subject: Subject) -> RuleResult | None:
    found = [one for one in arguments_named(subject, _UNREACHED) if one.name != _API_SERVERS or one.value == ("0",)]
    if not found:
        return None
    listed = "; ".join(f"with {one.written}, vLLM {_UNREACHED[one.name]}" for one in found)
    return RuleResult(
        f"vllm.extraArgs keeps the server from its port: {listed}. The probe and `gemma connect` speak HTTP on that port, so the "
        "server will never become ready.",
        remedies=(change("vllm.extra_args", kept_arguments(subject, found)),),
    )


@rule("SEC06")
def _read_media(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    domains = open_domains(resolved.vllm.allowed_media_domains)
    if not domains or not resolved.has_processor:
        return None
    inner = tuple(inner_domains(domains))
    network = _inner_network(subject)
    where = f" The server is in your network ({network})." if network else ""
    named = f" {', '.join(inner)} can only be inside it or on the server's host." if inner else ""
    return RuleResult(
        f"vllm.allowedMediaDomains has {number_of(len(domains), 'host')}. Any caller can make the server fetch URLs of "
        f"{', '.join(domains)} from its own "
        f"network. The owner of such a domain's DNS can point it to an internal address.{where}{named}",
        severity="block" if network or inner else "warn",
        remedies=(change("vllm.allowed_media_domains", None),),
        advice="Clients can send images, audio and video as data: URLs instead.",
    )


def _inner_network(subject: Subject) -> str:
    """Return the setting that puts the server in a network with other machines; empty if none does."""
    question, resolved = subject.resolved.question, subject.resolved
    if resolved.is_tpu and question.tpu.private_google_access is not None:
        return "tpu.existingNetwork"
    return "cloudRun.directVpc" if resolved.service.direct_vpc else ""


@rule("SEC10")
def _opened(subject: Subject) -> RuleResult | None:
    found = {one: words for one in arguments_named(subject, _OPENS) if (words := _opens(one))}
    if not found:
        return None
    listed = "; ".join(dict.fromkeys(found.values()))
    return RuleResult(
        f"vllm.extraArgs opens the server: {listed}.",
        remedies=(change("vllm.extra_args", kept_arguments(subject, tuple(found))),),
    )


def _opens(argument: ServerArgument) -> str:
    """Return the effect of an argument that opens the server, with its flag; empty for any other."""
    flag = argument.name
    is_closed = argument.is_off or argument.value in {(value,) for value in _CLOSED.get(flag, ())}
    return "" if is_closed else f"{flag} {_OPENS[flag]}"


@rule("SEC08")
def _archives_in_existing_bucket(subject: Subject) -> RuleResult | None:
    resolved, question = subject.resolved, subject.resolved.question
    cache = ("tpu.compile_cache", "machine") if resolved.is_tpu else ("cloud_run.compile_cache", "off")
    value = question.tpu.compile_cache if resolved.is_tpu else resolved.service.compile_cache
    if question.settings.bucket.existing is None or value != "bucket":
        return None
    return RuleResult(
        f"{file_key(cache[0])} is bucket, but bucket.existing is {question.settings.bucket.existing}, which the stack did not "
        "create. Archives are signed (HMAC-SHA-256): the server does not run other writers' programs, but "
        "they can delete archives and restore older ones of this stack.",
        remedies=(change(*cache),),
        advice="Accept this finding if you trust every writer of the bucket.",
    )
