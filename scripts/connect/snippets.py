"""Lines to paste: how common clients reach the server through `connect`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What a client has to know."""

    base_url: str
    """Base URL of the OpenAI API, such as `http://127.0.0.1:8000/v1`."""
    key: str
    """What clients send as the API key."""
    model: str


def snippets(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    """Return title and text for each client. Every text works as it is pasted."""
    return (
        ("curl", _curl(endpoint)),
        ("OpenAI SDK, Python", _python(endpoint)),
        ("OpenAI SDK, JavaScript", _javascript(endpoint)),
        ("LiteLLM", _litellm(endpoint)),
        ("Open WebUI", _open_webui(endpoint)),
        ("any OpenAI client", _variables(endpoint)),
    )


def _curl(endpoint: Endpoint) -> str:
    return f"""curl -s {endpoint.base_url}/chat/completions \\
  -H 'Content-Type: application/json' -H 'Authorization: Bearer {endpoint.key}' \\
  -d '{{"model": "{endpoint.model}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'"""


def _python(endpoint: Endpoint) -> str:
    return f"""from openai import OpenAI

client = OpenAI(base_url="{endpoint.base_url}", api_key="{endpoint.key}")
answer = client.chat.completions.create(
    model="{endpoint.model}", messages=[{{"role": "user", "content": "Say hello."}}]
)
print(answer.choices[0].message.content)"""


def _javascript(endpoint: Endpoint) -> str:
    return f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{endpoint.base_url}", apiKey: "{endpoint.key}" }});
const answer = await client.chat.completions.create({{
  model: "{endpoint.model}", messages: [{{ role: "user", content: "Say hello." }}],
}});
console.log(answer.choices[0].message.content);"""


def _litellm(endpoint: Endpoint) -> str:
    return f"""import litellm

answer = litellm.completion(
    model="hosted_vllm/{endpoint.model}", api_base="{endpoint.base_url}", api_key="{endpoint.key}",
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(answer.choices[0].message.content)"""


def _open_webui(endpoint: Endpoint) -> str:
    return f"OPENAI_API_BASE_URL={endpoint.base_url} OPENAI_API_KEY={endpoint.key} open-webui serve --port 8080"


def _variables(endpoint: Endpoint) -> str:
    return f"export OPENAI_BASE_URL={endpoint.base_url} OPENAI_API_KEY={endpoint.key}"
