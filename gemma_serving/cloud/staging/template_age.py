"""Recognize Google's fixes of Gemma 4's chat template by what a template writes in small conversations.

Anyone can write a template, so another process renders it: in Jinja's sandbox, within limits, and without this one's environment.
"""

import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from gemma_serving.cloud.staging.sources import BucketSource, FolderSource, HubSource
from gemma_serving.contracts.chat_template import AGE_WORDS, TEMPLATE, TemplateAge
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.planning.data.tables import data_file

_MOST_BYTES: Final = 256 * 1024
"""Largest template that is read. Google's has 18,683 bytes."""
_LIMIT_S: Final = 5
"""Processor time of all conversations. Google's template takes 0.1 s."""
_MEMORY_BYTES: Final = 512 * 1024**2
_MARKS: Final = {"bos_token": "<bos>", "eos_token": "<eos>"}
_AGES: Final[Mapping[bytes, TemplateAge]] = {
    b"has has": "2026-07",
    b"has lacks": "2026-04",
    b"lacks lacks": "older",
}
"""Age by what the process prints: whether a template has the fixes of April and of July."""


def template_record(source: FolderSource | HubSource | BucketSource) -> Mapping[str, str]:
    """Return the SHA-256 and the age of a source's chat template, for a manifest; empty without one. Raises ScriptError."""
    files = source.files()  # one file is a template of the project
    found = [file for file in files if file.name == TEMPLATE or len(files) == 1]
    if not found or found[0].size_bytes > _MOST_BYTES:
        return {}
    data = source.read(found[0], 0, found[0].size_bytes)
    return {"sha256": hashlib.sha256(data).hexdigest(), "age": template_age(data)}


def recorded_age(manifest: Mapping[str, object]) -> TemplateAge:
    """Return the age in a manifest; unknown if it records none."""
    by_name: Mapping[object, TemplateAge] = {age: age for age in AGE_WORDS}
    return by_name.get(as_mapping(manifest.get(TEMPLATE)).get("age"), "unknown")


def template_age(data: bytes) -> TemplateAge:
    """Return which of Google's fixes a template has; unknown if it cannot be rendered within the limits."""
    command = [sys.executable, "-P", "-m", __name__]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=2 * _LIMIT_S, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return _AGES.get(done.stdout.strip(), "unknown")


def _judge() -> None:
    """Render the template on stdin as transformers does (utils/chat_template_utils.py), and print `has`, `lacks` or `unknown` for each fix."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - takes 0.1 s, and only this process needs it

    resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT_S, _LIMIT_S))
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    rules = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    template, data = rules.from_string(sys.stdin.buffer.read().decode()), data_file("template_checks.json")

    def answer(check: Mapping[str, Any]) -> str:
        messages = [data["messages"][name] for name in check["messages"]]
        text = template.render(messages=messages, tools=[data["tool"]], add_generation_prompt=True, **_MARKS)
        if (check["has"] in text) == (check["lacks"] in text):
            return "unknown"
        return "has" if check["has"] in text else "lacks"

    def verdict(fix: str) -> str:
        answers = {answer(check) for check in data[fix]}
        if "lacks" in answers:
            return "lacks"
        return "has" if answers == {"has"} else "unknown"

    print(verdict("april"), verdict("july"))


if __name__ == "__main__":
    _judge()
