"""The bodies of the OpenAI-compatible endpoints, with vLLM's error messages."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from localcloud.json_values import as_list, as_object
from localcloud.vllm import tokens
from localcloud.vllm.arguments import DEFAULT_SOFT_TOKENS, SOFT_TOKENS

MEDIA: Final = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}
"""Modality by the type of a content part."""
_MAX_STOPS: Final = 4
_TYPES: Final[Mapping[type, tuple[str, str, str]]] = {
    bool: ("bool", "boolean", "unable to interpret input"),
    int: ("int", "integer", "unable to parse string as an integer"),
    float: ("float", "number", "unable to parse string as a number"),
    str: ("string", "string", ""),
    list: ("list", "list", ""),
    dict: ("dict", "dictionary", ""),
}
"""pydantic's name of each type in an error's kind and in its message, and the end of the message for a string that it cannot parse."""


class RequestError(Exception):
    """A rejected request: HTTP status, vLLM's error type, parameter and message."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """Return the JSON error body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A completion request, chat or text. `prompt` is in tokens; `transcript` is a chat's text by role, `question` the user's last message.

    `media` are the modalities of its items. `constraint` is the structure of the output: None, ("json", schema), ("choice", list).
    """

    is_chat: bool
    model: str | None
    prompt: tuple[int, ...]
    question: str
    transcript: str = ""
    is_result: bool = False
    """True if the last message is the result of a tool."""
    media: tuple[str, ...] = ()
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    limit: str
    """Name of the field with `max_tokens`."""
    min_tokens: int
    ignore_eos: bool
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    include_stop: bool
    tools: tuple[Mapping[str, Any], ...]
    tool_choice: str | None
    constraint: tuple[str, Any] | None
    template_kwargs: Mapping[str, Any]


def _invalid(message: str, param: str, value: object = None) -> RequestError:
    """Return the error of vLLM's own checks (vllm/exceptions.py, VLLMValidationError)."""
    stated = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return RequestError(f"{message} ({stated})", param=param)


@dataclass(frozen=True, slots=True)
class Malformed:
    """One error of pydantic: the place in the body, the kind, the message, what was given, and the error's own context."""

    place: str
    kind: str
    message: str
    given: object
    context: Mapping[str, object] | None = None

    def words(self) -> str:
        """Return the error as vLLM words it."""
        context = {} if self.context is None else {"ctx": dict(self.context)}
        shown = _shown(self.given)
        return str({"type": self.kind, "loc": self.place, "msg": self.message, "input": shown, **context})


def malformed(first: Malformed, *others: Malformed) -> RequestError:
    """Return the error of a body that pydantic rejects (observed with vLLM 0.32.0)."""
    errors = (first, *others)
    title = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}:"
    lines = [title, *(error.words() for error in errors)]
    return RequestError("\n  ".join(lines), kind="Bad Request", param=first.place)


def _shown(given: object) -> str:
    if isinstance(given, dict):
        return f"<dict of {len(cast('Mapping[object, object]', given))} items>"
    if isinstance(given, list):
        return f"<list of {len(cast('list[object]', given))} items>"
    return str(given)


def _field(body: Mapping[str, Any], name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:  # noqa: ANN401 - as the body has it
    """Return a field, converted as pydantic does: a number from a string or a boolean."""
    value = body.get(name)
    if value is None:
        return default
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(value, listed):
        return value
    if listed in {(int,), (float,)} and isinstance(value, bool | int | float | str):
        with suppress(ValueError):
            return listed[0](value)
    raise malformed(*(_mistyped(f"body.{name}", kind, value) for kind in listed))


def _mistyped(place: str, kind: type, value: object) -> Malformed:
    name, noun, unparsed = _TYPES[kind]
    is_unparsed = isinstance(value, str) and bool(unparsed)
    message = f"Input should be a valid {noun}{f', {unparsed}' if is_unparsed else ''}"
    return Malformed(place, f"{name}_{'parsing' if is_unparsed else 'type'}", message, value)


def _check_ranges(body: Mapping[str, Any], max_tokens: int | None, name: str) -> None:
    """Raise RequestError for a value outside of its range (vllm/sampling_params.py)."""
    if max_tokens is not None and max_tokens < 1:
        raise _invalid(f"{name} must be at least 1, got {max_tokens}.", name, max_tokens)
    temperature = _field(body, "temperature", float)
    if temperature is not None and temperature < 0:
        raise _invalid(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    top_p = _field(body, "top_p", float)
    if top_p is not None and not 0 < top_p <= 1:
        raise _invalid(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    min_tokens = _field(body, "min_tokens", int, 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise RequestError(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")


def refuse_more_choices(given: object, most: int) -> None:
    """Raise RequestError if a request asks for more answers than VLLM_MAX_N_SEQUENCES (vllm/sampling_params.py)."""
    value = _field(as_object(given), "n", int, 1)
    if value > most:
        hint = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        raise RequestError(f"n must be at most {most}, got {value}. {hint}")


def parse(given: object, *, is_chat: bool, soft_tokens: int = DEFAULT_SOFT_TOKENS) -> Request:
    """Parse a request body. `soft_tokens` is the server's size of an image. Raises RequestError."""
    if not isinstance(given, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise malformed(Malformed("body", "model_attributes_type", message, given))
    body = as_object(cast("object", given))
    _refuse_unsupported(body)
    chat = read_chat(body, soft_tokens) if is_chat else None
    prompt, question = _text_prompt(body) if chat is None else (chat.prompt, chat.question)
    options = as_object(_field(body, "stream_options", dict))
    stream = _field(body, "stream", bool, default=False)
    if options and not stream:
        raise _invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    limit = "max_completion_tokens" if is_chat and body.get("max_completion_tokens") is not None else "max_tokens"
    # OpenAI's text completions default to 16 tokens, and so does vLLM.
    max_tokens = _field(body, limit, int, None if is_chat else 16)
    _check_ranges(body, max_tokens, limit)
    tools = tuple(as_list(_field(body, "tools", list)))
    if body.get("tools") is not None and not tools:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise _invalid(message, "tools")
    return Request(
        is_chat=is_chat,
        model=_field(body, "model", str),
        prompt=prompt,
        question=question,
        transcript=question if chat is None else chat.transcript,
        is_result=chat is not None and chat.is_result,
        media=() if chat is None else chat.media,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        max_tokens=max_tokens,
        limit=limit,
        min_tokens=_field(body, "min_tokens", int, 0),
        ignore_eos=_field(body, "ignore_eos", bool, default=False),
        temperature=_field(body, "temperature", float, 1.0),
        seed=_field(body, "seed", int),
        stop=_stops(body),
        include_stop=_field(body, "include_stop_str_in_output", bool, default=False),
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        constraint=_constraint(body),
        template_kwargs=as_object(_field(body, "chat_template_kwargs", dict)),
    )


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name in ("n", "best_of"):
        if _field(body, name, int, 1) != 1:
            raise RequestError(f"The simulated server only returns one choice: {name} must be 1.", param=name)
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        if body.get(name) not in (None, False):
            raise RequestError(f"The simulated server has no logits, so {name} is not supported.", param=name)
    for name in ("echo", "suffix", "use_beam_search", "prompt_embeds"):
        if body.get(name):
            raise RequestError(f"The simulated server does not support {name}.", param=name)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = _field(body, "stop", (str, list), [])
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(item, str) and item for item in stops):
        raise RequestError("stop cannot contain an empty string.")
    if len(stops) > _MAX_STOPS:
        message = f"List should have at most {_MAX_STOPS} items after validation, not {len(stops)}"
        context = {"field_type": "List", "max_length": _MAX_STOPS, "actual_length": len(stops)}
        too_long = Malformed("body.stop", "too_long", message, stop, context)
        raise malformed(_mistyped("body.stop", str, stop), too_long)
    return stops


def _text_prompt(body: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    prompt: object = body.get("prompt")
    listed = as_list(prompt)
    if len(listed) == 1 and isinstance(listed[0], str | list):
        prompt = cast("object", listed[0])
        listed = as_list(prompt)
    if isinstance(prompt, str) and prompt:
        bos = () if body.get("add_special_tokens") is False else (tokens.BOS,)
        return (*bos, *tokens.encode(prompt)), prompt
    if listed and all(isinstance(item, int) for item in listed):
        try:
            text = tokens.decode(listed)
        except ValueError as error:
            raise RequestError(str(error)) from error
        return tuple(listed), text
    if len(listed) > 1:
        raise RequestError("The simulated server accepts one prompt per request.", param="prompt")
    raise _invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A chat as the model sees it, as in `Request`."""

    prompt: tuple[int, ...]
    question: str
    transcript: str
    is_result: bool
    media: tuple[str, ...]


def read_chat(body: Mapping[str, Any], soft_tokens: int = DEFAULT_SOFT_TOKENS) -> ChatPrompt:
    """Return the tokens of a chat's messages and tools, and the question. Raises RequestError."""
    messages = _field(body, "messages", list)
    if messages is None:
        raise malformed(Malformed("body.messages", "missing", "Field required", body))
    if not messages:
        raise RequestError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    counts = {**tokens.MEDIA, "image": _image_size(body, soft_tokens) + 2}
    turns: list[tuple[str, str, int]] = []
    media: list[str] = []
    for index, message in enumerate(map(as_object, messages)):
        role = message.get("role")
        if not isinstance(role, str):
            # vLLM lists the error of each kind of message, of which this is one.
            place = f"body.messages.{index}.CustomChatCompletionMessageParam.role"
            raise malformed(Malformed(place, "missing", "Field required", message))
        text, items = _content(message.get("content"))
        calls = "".join(str(call) for call in as_list(message.get("tool_calls")))
        turns.append((role, text + calls, sum(counts[item] for item in items)))
        media += items
    transcript = "\n".join(f"{role}: {text}" for role, text, _ in turns)
    asked = [text for role, text, _ in turns if role == "user"]
    is_result = turns[-1][0] == "tool"
    tools = as_list(body.get("tools"))
    if tools and body.get("tool_choice") != "none":
        turns.insert(0, ("developer", str(tools), 0))
    add = body.get("add_generation_prompt") is not False
    return ChatPrompt(
        prompt=tuple(tokens.encode_chat(turns, add_generation_prompt=add)),
        question=asked[-1] if asked else "",
        transcript=transcript,
        is_result=is_result,
        media=tuple(media),
    )


def _image_size(body: Mapping[str, Any], soft_tokens: int) -> int:
    """Return the maximum tokens of an image, which a request can choose."""
    chosen = as_object(_field(body, "mm_processor_kwargs", dict)).get("max_soft_tokens", soft_tokens)
    if chosen not in SOFT_TOKENS:
        raise RequestError(f"Unsupported max_soft_tokens value: {chosen}. Valid values are {SOFT_TOKENS}.")
    return chosen


def _content(content: object) -> tuple[str, list[str]]:
    """Return a message's text, and the modality of each image, sound and video."""
    if isinstance(content, str):
        return content, []
    texts: list[str] = []
    items: list[str] = []
    for part in map(as_object, as_list(content)):
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("text", "")))
        elif kind in MEDIA:
            items.append(MEDIA[kind])
        else:
            raise RequestError(f"Unknown part type: {kind}", param="messages")
    return "\n".join(texts), items


def _tool_choice(body: Mapping[str, Any], tools: Sequence[Any]) -> str | None:
    """Return None, `auto`, `none`, `required` or the name of a function."""
    choice = body.get("tool_choice")
    if not tools:
        if choice not in (None, "none"):
            raise _invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
        return None
    names = [_tool_name(tool, f"body.tools.{index}") for index, tool in enumerate(tools)]
    if choice is None:
        return "auto"
    if isinstance(choice, dict):
        name = as_object(as_object(cast("object", choice)).get("function")).get("name")
        if name not in names:
            message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise _invalid(message, "tool_choice")
        return str(name)
    if choice not in ("auto", "none", "required"):
        allowed = 'Only named tools, "none", "auto" or "required" are supported.'
        raise _invalid(f"Invalid value for `tool_choice`: {choice}! {allowed}", "tool_choice")
    return str(choice)


def _tool_name(tool: object, place: str) -> str:
    given = as_object(tool)
    function = as_object(given.get("function"))
    if "function" not in given:
        raise malformed(Malformed(f"{place}.function", "missing", "Field required", given))
    if "name" not in function:
        raise malformed(Malformed(f"{place}.function.name", "missing", "Field required", function))
    return str(function["name"])


def _constraint(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    bound = as_object(_field(body, "structured_outputs", dict))
    for kind in ("json", "choice"):
        if bound.get(kind) is not None:
            return kind, bound[kind]
    if bound.get("json_object"):
        return "json", {"type": "object", "properties": {"answer": {"type": "string"}}}
    for kind in ("regex", "grammar", "structural_tag"):
        if bound.get(kind) is not None:
            raise RequestError(
                f"The simulated server does not support {kind} in structured_outputs.", param="structured_outputs"
            )
    wanted = as_object(_field(body, "response_format", dict))
    match wanted.get("type"):
        case None | "text":
            return None
        case "json_object":
            return "json", {"type": "object", "properties": {"answer": {"type": "string"}}}
        case "json_schema":
            schema = as_object(wanted.get("json_schema")).get("schema")
            if schema is None:
                message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
                raise _invalid(message, "response_format")
            return "json", schema
        case other:
            # vLLM lists the error of each kind of format, of which this is one.
            message = "Input should be 'text', 'json_object' or 'json_schema'"
            raise malformed(Malformed("body.response_format.type", "literal_error", message, other))


def check_length(request: Request, max_model_len: int) -> int:
    """Return the maximum number of tokens of the response: what was requested, or what is left of the context. Raises RequestError."""
    prompt, wanted = len(request.prompt), request.max_tokens
    if wanted is not None and wanted > max_model_len:
        message = f"{request.limit}={wanted} cannot be greater than max_model_len={max_model_len}."
        raise _invalid(f"{message} Please request fewer output tokens.", request.limit, wanted)
    if prompt > max_model_len:
        # vLLM stops counting at the first token too many.
        counted = max_model_len + 1
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least {counted} input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
        )
        raise _invalid(message, "input_tokens", counted)
    left = max_model_len - prompt
    if left < 1:
        raise _invalid(f"max_tokens must be at least 1, got {left}.", "max_tokens", left)
    return min(wanted or left, left)
