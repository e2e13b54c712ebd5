"""Ask a stack's server for its health and its load."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from contracts.outputs import StackOutputs
from scripts.client.metrics import KV_USAGE, RUNNING, WAITING, parse_metrics
from scripts.errors import ScriptError
from scripts.pulumi.deployment import as_mapping
from scripts.status.cloud import DeployedServer
from scripts.status.report import ServerFacts

if TYPE_CHECKING:
    import requests

ANSWER_LIMIT_S: Final = 15.0


def why_not_asked(outputs: StackOutputs, found: DeployedServer | None, *, tunnel: bool, wake: bool) -> str | None:
    """Return why the server is not asked, a sentence; None if it is."""
    if outputs.auth == "tunnel" and not tunnel:
        return "The server is behind a tunnel; --tunnel opens it."
    if outputs.target == "cloud-run" and not wake and _sleeps(found):
        return "The service may sleep (minInstances 0), and a request would start an instance; --wake asks it."
    return None


def _sleeps(found: DeployedServer | None) -> bool:
    template = as_mapping(found.inputs.get("template")) if found else as_mapping(None)
    least = as_mapping(template.get("scaling")).get("minInstanceCount")
    return not least


def server_facts(outputs: StackOutputs) -> ServerFacts:
    """Return what the server says. Raises ScriptError if there is no way to it."""
    import requests  # noqa: PLC0415 - 0.1 s, and few stacks are asked

    from scripts.client.access import open_stack_access  # noqa: PLC0415 - as above

    with open_stack_access(outputs) as access:
        try:
            headers = dict(access.headers())
            health = requests.get(f"{access.base_url}/health", headers=headers, timeout=ANSWER_LIMIT_S)
            if not health.ok:
                return ServerFacts(health=f"HTTP {health.status_code}")
            answer = requests.get(f"{access.base_url}/metrics", headers=headers, timeout=ANSWER_LIMIT_S)
        except requests.RequestException as error:
            raise ScriptError(f"The server does not answer ({type(error).__name__}).") from None
    if not answer.ok:
        return ServerFacts(health="ready")
    return ServerFacts(health="ready", **_load(answer))


def _load(answer: "requests.Response") -> Mapping[str, float | None]:
    scrape = parse_metrics(answer.text)
    return {
        "running_requests": scrape.total(RUNNING),
        "waiting_requests": scrape.total(WAITING),
        "kv_use_share": scrape.highest(KV_USAGE),
    }
