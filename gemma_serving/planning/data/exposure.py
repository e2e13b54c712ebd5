"""What callers reach of a server, and what it reaches: closed unless the settings open it.

Interfaces for callers, networks that the server reads for them, and reports to the makers of its software.

Sources: vLLM docs/usage/security.md (API key limitations, SSRF), entrypoints/openai/cli_args.py (`--allowed-origins` is `["*"]`),
multimodal/media/connector.py (`--allowed-media-domains`), envs.py and usage/usage_lib.py; huggingface_hub's constants.py.
gemma_serving/planning/data/flags.json has each flag in every release with a table.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from gemma_serving.contracts.path_guard import GUARD_ARGUMENT

NO_DOMAIN: Final = "none.invalid"
"""Domain of a server that fetches no media by URL. vLLM treats an empty list as "every domain", and this name exists in no DNS (RFC 6761)."""
EXPOSURE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",
    "VLLM_MAX_N_SEQUENCES": "64",  # answers to one request. vLLM allows 16384, and advises 64 or 128 for public servers
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "0",
}
"""No adapters loaded by callers, no redirects of a media URL, no developer endpoints, and no usage statistics: vLLM's to stats.vllm.ai, and those of
huggingface_hub and of other libraries that read DO_NOT_TRACK. Set explicitly, so an image cannot enable them."""

_INNER_NAMES: Final = ("localhost", "internal", "local", "lan", "home.arpa")
"""Name endings that only an internal network resolves."""


def exposure_arguments(*, has_api_key: bool) -> tuple[str, ...]:
    """Return the arguments of every server. No web page may call it; with an API key every path except /health requires the key."""
    return ("--allowed-origins=[]", *((GUARD_ARGUMENT,) if has_api_key else ()))


def open_domains(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the domains from which a server fetches media; none by default."""
    return tuple(domain for domain in given or () if domain != NO_DOMAIN)


def inner_domains(domains: Sequence[str]) -> Iterator[str]:
    """Yield addresses, and names that only exist in an internal network."""
    for domain in domains:
        if "." not in domain or domain.endswith(tuple(f".{name}" for name in _INNER_NAMES)) or _is_address(domain):
            yield domain


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
