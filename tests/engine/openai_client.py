"""A program with the OpenAI SDK, as `scripts.connect -- CMD` starts it: it knows OPENAI_BASE_URL and OPENAI_API_KEY and nothing else.

Arguments: seconds to go on for. It prints one JSON object.
"""

import json
import os
import sys
import time

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main():
    client = OpenAI(max_retries=0, timeout=60)
    model = client.models.list().data[0].id
    assert model == os.environ["OPENAI_MODEL"]
    asked = [{"role": "user", "content": "Say hello."}]
    whole = client.chat.completions.create(model=model, messages=asked, max_tokens=8)
    raw = client.completions.create(model=model, prompt="Once upon a time", max_tokens=4)
    question = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    tool = client.chat.completions.create(model=model, messages=question, tools=[TOOL], max_tokens=64)
    text, end = "", time.monotonic() + float(sys.argv[1])
    while not text or time.monotonic() < end:
        chunks = client.chat.completions.create(
            model=model, messages=asked, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        parts = list(chunks)
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert parts[-1].usage.completion_tokens > 0
        time.sleep(0.2)  # a client that asks now and then
    called = tool.choices[0].message.tool_calls
    answers = whole.choices[0].message.content, raw.choices[0].text, text, called and called[0].function.name
    print(json.dumps(dict(zip(("whole", "completion", "streamed", "tool"), answers, strict=True))))


main()
