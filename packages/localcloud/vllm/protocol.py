"""The bodies of the OpenAI-compatible endpoints, with vLLM's error messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from localcloud.json_values import as_list, as_object
from localcloud.vllm import tokens
from localcloud.vllm.media_items import DEFAULT_SOFT_TOKENS, KINDS, SOFT_TOKENS, MediaItem, MediaItemError, item_of

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_STOPS: Final = 16


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
    """A completion request, chat or text. `prompt` is in tokens; `question` is the user's last message, empty after a tool's result.

    `system` is the text of the system messages, `told` the text of all messages, `tool_result` the last message if it is one of a tool.

    `constraint` is the structure of the output: None, ("json", schema), ("choice", list).
    """

    is_chat: bool
    model: str | None
    prompt: tuple[int, ...]
    question: str
    system: str = ""
    told: str = ""
    tool_result: str = ""
    media: tuple[MediaItem, ...] = ()
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
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


def _field(body: Mapping[str, Any], name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:  # noqa: ANN401 - as the body has it
    value = body.get(name)
    if value is None:
        return default
    wrong_bool = isinstance(value, bool) and kinds is not bool
    if wrong_bool or not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise RequestError(f"{{'loc': ('body', '{name}'), 'msg': 'Input should be a valid {names}'}}", param=name)
    return value


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and value < least:
        raise RequestError(f"{name} must be at least {least}, got {value}.", param=name)


def refuse_more_choices(given: object, most: int) -> None:
    """Raise RequestError if a request asks for more answers than VLLM_MAX_N_SEQUENCES (vllm/sampling_params.py)."""
    value = _field(as_object(given), "n", int, 1)
    if value > most:
        hint = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        raise RequestError(f"n must be at most {most}, got {value}. {hint}", param="n")


def parse(given: object, *, is_chat: bool, soft_tokens: int = DEFAULT_SOFT_TOKENS) -> Request:
    """Parse a request body. `soft_tokens` is the server's size of an image. Raises RequestError."""
    if not isinstance(given, dict):
        raise RequestError("{'loc': ('body',), 'msg': 'Input should be a valid dictionary'}")
    body = as_object(cast("object", given))
    _refuse_unsupported(body)
    chat = read_chat(body, soft_tokens) if is_chat else None
    prompt, question = _text_prompt(body) if chat is None else (chat.prompt, chat.question)
    options = as_object(_field(body, "stream_options", dict))
    stream = _field(body, "stream", bool, default=False)
    if options and not stream:
        raise RequestError("Stream options can only be defined when `stream=True`.", param="stream_options")
    max_tokens = _field(body, "max_completion_tokens", int) if is_chat else None
    if max_tokens is None:
        # OpenAI's text completions default to 16 tokens, and so does vLLM.
        max_tokens = _field(body, "max_tokens", int, None if is_chat else 16)
    _at_least("max_tokens", max_tokens, 1)
    temperature = float(_field(body, "temperature", (int, float), 1.0))
    _at_least("temperature", temperature, 0.0)
    tools = tuple(as_list(_field(body, "tools", list)))
    return Request(
        is_chat=is_chat,
        model=_field(body, "model", str),
        prompt=prompt,
        question=question,
        system="" if chat is None else chat.system,
        told="" if chat is None else chat.told,
        tool_result="" if chat is None else chat.tool_result,
        media=() if chat is None else chat.media,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        max_tokens=max_tokens,
        min_tokens=_field(body, "min_tokens", int, 0),
        ignore_eos=_field(body, "ignore_eos", bool, default=False),
        temperature=temperature,
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
        raise RequestError("stop cannot contain an empty string.", param="stop")
    if len(stops) > _MAX_STOPS:
        raise RequestError(f"The simulated server accepts at most {_MAX_STOPS} stop strings.", param="stop")
    return stops


def _text_prompt(body: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    prompt: object = body.get("prompt")
    listed = as_list(prompt)
    if len(listed) == 1 and isinstance(listed[0], str | list):
        prompt = cast("object", listed[0])
        listed = as_list(prompt)
    if isinstance(prompt, str):
        bos = () if body.get("add_special_tokens") is False else (tokens.BOS,)
        return (*bos, *tokens.encode(prompt)), prompt
    if listed and all(isinstance(item, int) for item in listed):
        try:
            text = tokens.decode(listed)
        except ValueError as error:
            raise RequestError(f"{error}.", param="prompt") from error
        return tuple(listed), text
    if len(listed) > 1:
        raise RequestError("The simulated server accepts one prompt per request.", param="prompt")
    raise RequestError("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A chat as the model sees it, as in `Request`."""

    prompt: tuple[int, ...]
    question: str
    system: str
    told: str
    tool_result: str
    media: tuple[MediaItem, ...]


def read_chat(body: Mapping[str, Any], soft_tokens: int = DEFAULT_SOFT_TOKENS) -> ChatPrompt:
    """Return the tokens of a chat's messages and tools, and the question. Raises RequestError."""
    messages = _field(body, "messages", list)
    if not messages:
        raise RequestError("{'loc': ('body', 'messages'), 'msg': 'List should have at least 1 item'}", param="messages")
    size = _image_size(body, soft_tokens)
    turns: list[tuple[str, str, int]] = []
    media: list[MediaItem] = []
    question = tool_result = ""
    for message in map(as_object, messages):
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(f"Each message needs a role, one of {', '.join(_ROLES)}.", param="messages")
        text, items = _content(message.get("content"), size)
        question = {"user": text, "tool": ""}.get(role, question)
        tool_result = {"user": "", "tool": text}.get(role, tool_result)
        calls = "".join(str(call) for call in as_list(message.get("tool_calls")))
        turns.append((role, text + calls, sum(item.tokens for item in items)))
        media += items
    system = "\n".join(text for role, text, _ in turns if role in {"system", "developer"})
    told = "\n".join(text for _, text, _ in turns)
    tools = as_list(body.get("tools"))
    if tools and body.get("tool_choice") != "none":
        turns.insert(0, ("developer", str(tools), 0))
    add = body.get("add_generation_prompt") is not False
    prompt = tuple(tokens.encode_chat(turns, add_generation_prompt=add))
    return ChatPrompt(
        prompt=prompt, question=question, system=system, told=told, tool_result=tool_result, media=tuple(media)
    )


def _image_size(body: Mapping[str, Any], soft_tokens: int) -> int:
    """Return the maximum tokens of an image, which a request can choose."""
    chosen = as_object(_field(body, "mm_processor_kwargs", dict)).get("max_soft_tokens", soft_tokens)
    if chosen not in SOFT_TOKENS:
        raise RequestError(f"Unsupported max_soft_tokens value: {chosen}. Valid values are {SOFT_TOKENS}.")
    return chosen


def _content(content: object, soft_tokens: int) -> tuple[str, list[MediaItem]]:
    """Return a message's text, and its images, sounds and videos."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    texts: list[str] = []
    items: list[MediaItem] = []
    for part in map(as_object, as_list(content)):
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("text", "")))
        elif kind in KINDS:
            items.append(_item(part, soft_tokens))
        else:
            raise RequestError(f"Unknown part type: {kind}", param="messages")
    return "\n".join(texts), items


def _item(part: Mapping[str, Any], soft_tokens: int) -> MediaItem:
    try:
        return item_of(part, soft_tokens)
    except MediaItemError as error:
        raise RequestError(str(error)) from None


def _tool_choice(body: Mapping[str, Any], tools: Sequence[Any]) -> str | None:
    """Return None, `auto`, `none`, `required` or the name of a function."""
    choice = body.get("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("When using `tool_choice`, `tools` must be set.", param="tool_choice")
        return None
    names = [as_object(as_object(tool).get("function")).get("name") for tool in tools]
    for name in names:
        if not isinstance(name, str):
            raise RequestError("Each tool needs a function with a name.", param="tools")
    if choice is None:
        return "auto"
    if isinstance(choice, dict):
        name = as_object(as_object(cast("object", choice)).get("function")).get("name")
        if name not in names:
            raise RequestError(
                "The tool specified in `tool_choice` does not match any of the specified `tools`", param="tool_choice"
            )
        return str(name)
    if choice not in ("auto", "none", "required"):
        raise RequestError(f"Invalid value for `tool_choice`: {choice}!", param="tool_choice")
    return str(choice)


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
                raise RequestError(
                    "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                    param="response_format",
                )
            return "json", schema
        case other:
            raise RequestError(
                f"The simulated server does not support response_format {other!r}.", param="response_format"
            )


def check_length(request: Request, max_model_len: int) -> int:
    """Return the maximum number of tokens of the response, or raise vLLM's error."""
    prompt, wanted = len(request.prompt), request.max_tokens
    if prompt + (wanted or 1) <= max_model_len:
        return wanted or max_model_len - prompt
    asked = f"you requested {wanted} output tokens and your prompt" if wanted else "your prompt"
    total = f", for a total of at least {prompt + wanted} tokens" if wanted else ""
    raise RequestError(
        f"This model's maximum context length is {max_model_len} tokens. However, {asked} contains at least "
        f"{prompt} input tokens{total}. Please reduce the length of the input prompt or the number of requested "
        "output tokens.",
        param="input_tokens",
    )
