"""An agent of Google's ADK with one tool, whose model is a server of this project.

  gemma connect STACK -- adk web examples/agents

An agent on Google Cloud can call a Cloud Run stack without `gemma connect`: GEMMA_URL is the stack's output `endpoint`, OPENAI_MODEL its model.
"""

import os

import google.auth.transport.requests
import google.oauth2.id_token
from google.adk.agents import Agent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.lite_llm import LiteLlm
from google.adk.models.llm_request import LlmRequest
from google.genai.types import HttpOptions

URL = os.environ.get("GEMMA_URL")


def get_weather(location: str) -> dict[str, object]:
    """Return the weather of a city."""
    return {"location": location, "temperature_celsius": 23.7, "sky": "clear"}


def add_token(callback_context: CallbackContext, llm_request: LlmRequest) -> None:  # noqa: ARG001 - ADK calls it so
    """Add an identity token to each request, because it expires after an hour."""
    if URL:
        token = google.oauth2.id_token.fetch_id_token(google.auth.transport.requests.Request(), URL)
        llm_request.config.http_options = HttpOptions(headers={"X-Serverless-Authorization": f"Bearer {token}"})


root_agent = Agent(
    name="weather",
    model=LiteLlm(
        model=f"openai/{os.environ['OPENAI_MODEL']}",  # not hosted_vllm/: docs/agents.md
        api_base=f"{URL}/v1" if URL else os.environ["OPENAI_BASE_URL"],
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ),
    instruction="Call a tool for each question about the weather, and answer with its numbers.",
    tools=[get_weather],
    before_model_callback=add_token,
)
