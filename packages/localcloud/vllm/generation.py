"""Plan a whole completion before its first token is due: text, reasoning, tool calls, end and finish reason."""

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from localcloud.json_values import as_list, as_object
from localcloud.vllm import answers, tokens
from localcloud.vllm.media_items import answer_about
from localcloud.vllm.protocol import Request, RequestError
from localcloud.vllm.schema import SchemaError, fitting_value


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function call in the completion. Its arguments are the last tokens."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A planned completion. `texts[i]` is the text of token i (possibly empty).

    Tokens before `reasoning_end` are reasoning, those before `content_end` content, the rest the arguments of `tool`.
    """

    texts: list[str]
    reasoning_end: int
    content_end: int
    tool: ToolCall | None
    finish_reason: str
    stop_reason: str | None

    def reasoning(self) -> str:
        """Return the reasoning text."""
        return "".join(self.texts[: self.reasoning_end])

    def content(self) -> str:
        """Return the content text."""
        return "".join(self.texts[self.reasoning_end : self.content_end])

    def aborted(self, end: int) -> "Completion":
        """Return what a client gets of this completion if the server shuts down after `end` tokens."""
        return replace(self, texts=self.texts[:end], finish_reason="abort", stop_reason=None)

    def arguments(self) -> str:
        """Return the tool call's arguments, as JSON text."""
        return "".join(self.texts[self.content_end :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """The features that the server's flags enable."""

    auto_tools: bool
    reasoning: bool
    template_kwargs: Mapping[str, Any]
    seed: int
    adapters: frozenset[str]
    """Names of the LoRA adapters, whose free answers differ from the model's."""


def answer(request: Request, abilities: Abilities, *, most: int, arrival: int) -> Completion:
    """Return the completion of at most `most` tokens. `arrival` is the request's number, which varies free answers above temperature 0.

    Raises RequestError for unsupported requests (a schema that the simulator cannot fill, tools without a parser).
    """
    tool = _tool_to_call(request, abilities)
    thinks = {**abilities.template_kwargs, **request.template_kwargs}.get("enable_thinking") is True
    reasoning = tokens.pieces(answers.thinking(request.question)) if thinks and request.is_chat else []
    arguments: list[bytes] = []
    content: list[bytes] = []
    free = False
    if tool is not None:
        arguments = tokens.pieces(_arguments(tool, request))
    else:
        text = _bound_text(request)
        if text is None and not request.ignore_eos:
            text = _known_text(request)
        if text is None:
            free = True
            content = _free_content(request, abilities, most=most - len(reasoning), arrival=arrival)
        else:
            content = tokens.pieces(text) or [b"."]
    whole = [*reasoning, *content, *arguments]
    # Every end within the limit is a stop, unless the length was forced.
    natural = not (free and (request.ignore_eos or len(whole) < request.min_tokens))
    finish = "tool_calls" if tool is not None else "stop"
    if len(whole) > most or (not natural and len(whole) == most):
        whole, finish = whole[:most], "length"
    reasoning_end = min(len(reasoning), len(whole))
    content_end = min(len(reasoning) + len(content), len(whole))
    texts = [*_texts(whole[:reasoning_end]), *_texts(whole[reasoning_end:content_end]), *_texts(whole[content_end:])]
    if not abilities.reasoning:
        # Without a parser the reasoning stays in the content.
        reasoning_end = 0
    made = Completion(
        texts=texts,
        reasoning_end=reasoning_end,
        content_end=content_end,
        tool=None if tool is None or content_end == len(whole) else ToolCall(name=tool["function"]["name"]),
        finish_reason=finish,
        stop_reason=None,
    )
    return _stopped(made, request)


def _known_text(request: Request) -> str | None:
    """Return the answer from the files, from a tool's result, from the messages, or from the simulator's facts."""
    if request.tool_result:
        return answers.about_result(request.tool_result)
    found = answer_about(request.media, request.question) if request.media else None
    return found or answers.recalled(request.question, request.told) or answers.known_answer(request.question)


def _free_content(request: Request, abilities: Abilities, *, most: int, arrival: int) -> list[bytes]:
    """Return sentences of the forced, natural or minimum length."""
    vary = request.seed if request.temperature == 0 or request.seed is not None else arrival
    adapter = request.model if request.model in abilities.adapters else ""
    seed = answers.seed_of(request.prompt, f"{adapter}{abilities.seed if vary is None else vary}")
    if request.ignore_eos:
        return answers.sentences(seed, max(1, most))
    whole = answers.whole_sentences(seed, answers.natural_length(seed))
    if len(whole) < request.min_tokens:
        whole = answers.sentences(seed, request.min_tokens)
    # One token more than allowed shows that the limit ended the response.
    return whole[: max(1, most + 1)]


def _tool_to_call(request: Request, abilities: Abilities) -> Mapping[str, Any] | None:
    choice = request.tool_choice
    if choice is None or choice == "none":
        return None
    if choice == "auto":
        if not abilities.auto_tools:
            raise RequestError(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
                param="tool_choice",
            )
        # After a tool's result the model responds with text.
        return request.tools[0] if request.question else None
    if choice == "required":
        return request.tools[0]
    return next(tool for tool in request.tools if tool["function"]["name"] == choice)


def _arguments(tool: Mapping[str, Any], request: Request) -> str:
    parameters = as_object(as_object(tool["function"]).get("parameters"))
    schema = parameters or {"type": "object", "properties": {}}
    return _fitting(schema, request, param="tools")


def _bound_text(request: Request) -> str | None:
    if request.constraint is None:
        return None
    kind, value = request.constraint
    if kind == "choice":
        choices = [str(item) for item in as_list(value)]
        if not choices:
            raise RequestError("structured_outputs.choice must be a list of strings.", param="structured_outputs")
        named = [item for item in choices if item.lower() in request.question.lower()]
        return (named or choices)[0]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise RequestError(f"Invalid JSON schema: {error}", param="structured_outputs") from error
    return _fitting(value, request, param="response_format")


def _fitting(schema: Any, request: Request, *, param: str) -> str:  # noqa: ANN401 - a schema
    try:
        value = fitting_value(schema, request.question)
    except (SchemaError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"The simulated server cannot fill this JSON schema: {error}.", param=param) from error
    if isinstance(value, dict):
        value = {
            **as_object(cast("object", value)),
            **answers.told_fields(request.system, as_object(cast("object", value))),
        }
    known = answers.known_answer(request.question)
    if known is not None and isinstance(as_object(value).get("answer"), str):
        value = {**as_object(value), "answer": known}
    return json.dumps(value, ensure_ascii=False)


def _texts(pieces: list[bytes]) -> list[str]:
    """Decode the pieces one by one. A character that spans several pieces appears with its last piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return texts


def _stopped(made: Completion, request: Request) -> Completion:
    """End the response at the first stop string in its content."""
    if not request.stop:
        return made
    content = made.content()
    found = [(content.find(stop), stop) for stop in request.stop if stop in content]
    if not found:
        return made
    at, stop = min(found)
    length, kept = 0, made.reasoning_end
    while length < at + len(stop):
        length += len(made.texts[kept])
        kept += 1
    visible = at + len(stop) if request.include_stop else at
    texts, left = made.texts[: made.reasoning_end], visible
    for text in made.texts[made.reasoning_end : kept]:
        texts.append(text[:left])
        left = max(0, left - len(text))
    return Completion(
        texts=texts,
        reasoning_end=made.reasoning_end,
        content_end=kept,
        tool=None,
        finish_reason="stop",
        stop_reason=stop,
    )
