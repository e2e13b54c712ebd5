"""The bodies of the OpenAI-compatible endpoints, with vLLM's error messages: fields by type, then the rows of `data/refusals.toml`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from localcloud.json_values import JsonObject, as_list, as_object, part
from localcloud.vllm import tokens
from localcloud.vllm.arguments import DEFAULT_SOFT_TOKENS, Arguments
from localcloud.vllm.recorded import Model
from localcloud.vllm.refusals import refusal_of

MEDIA: Final = {"image_url": "image", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}
"""Modality by the type of a content part."""
_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "model": (str,),
    "stream": (bool,),
    "ignore_eos": (bool,),
    "n": (int,),
    "max_tokens": (int,),
    "max_completion_tokens": (int,),
    "min_tokens": (int,),
    "seed": (int,),
    "temperature": (float,),
    "top_p": (float,),
    "messages": (list,),
    "tools": (list,),
    "stream_options": (dict,),
    "chat_template_kwargs": (dict,),
    "mm_processor_kwargs": (dict,),
    "structured_outputs": (dict,),
    "response_format": (dict,),
    "stop": (str, list),
}
"""Types of the fields of a body."""
_UNSUPPORTED: Final = ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "use_beam_search")
_UNSUPPORTED_FORMS: Final = ("regex", "grammar", "structural_tag")
_MAX_STOPS: Final = 4
_UNLIMITED: Final = 999
"""vLLM's limit of a modality that `--limit-mm-per-prompt` does not name."""
_HEARS: Final = ("E2B", "E4B", "12B", "tiny")
"""Beginnings of the names of models whose config.json has `audio_config`."""
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

    def body(self) -> JsonObject:
        """Return the JSON error body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A prompt in tokens; `transcript` is a chat's text by role, `question` the user's last message; `media`: the modalities of its items."""

    prompt: tuple[int, ...]
    question: str
    transcript: str
    is_result: bool = False
    """True if the last message is the result of a tool."""
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A completion request, chat or text. `tool_choice`: None, `auto`, `none`, `required` or the name of a tool."""

    is_chat: bool
    model: str | None
    chat: ChatPrompt
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    limit: str
    """Name of the field with `max_tokens`."""
    ignore_eos: bool
    tools: tuple[Mapping[str, Any], ...]
    tool_choice: str | None
    schema: JsonObject | str | None
    """The JSON schema of the answer."""
    choices: tuple[str, ...]
    """Texts of which the answer must be one."""
    template_kwargs: Mapping[str, Any]


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
        size = len(as_list(self.given) or as_object(self.given))
        is_list = isinstance(self.given, list | dict)
        shown = f"<{type(self.given).__name__} of {size} items>" if is_list else str(self.given)
        return str({"type": self.kind, "loc": self.place, "msg": self.message, "input": shown, **context})


def malformed(first: Malformed, *others: Malformed) -> RequestError:
    """Return the error of a body that pydantic rejects (observed with vLLM 0.32.0)."""
    errors = (first, *others)
    title = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}:"
    lines = [title, *(error.words() for error in errors)]
    return RequestError("\n  ".join(lines), kind="Bad Request", param=first.place)


def missing(place: str, given: object) -> Malformed:
    """Return pydantic's error of a field that is not there."""
    return Malformed(place, "missing", "Field required", given)


def refuse_request(kind: str, facts: Mapping[str, Any]) -> None:
    """Raise RequestError with the words of the first row of a kind whose conditions hold."""
    row = refusal_of(kind, facts)
    if row is not None:
        kind_of_error, status = row.get("type", "BadRequestError"), row.get("status", 400)
        raise RequestError(row["words"], status=status, kind=kind_of_error, param=row.get("param"))


def _converted(name: str, value: Any) -> Any:  # noqa: ANN401 - as the body has it
    """Return a field, converted as pydantic does: a number from a string or a boolean."""
    kinds = _FIELDS[name]
    if value is None or isinstance(value, kinds):
        return cast("Any", value)
    if kinds[0] in {int, float} and isinstance(value, bool | int | float | str):
        with suppress(ValueError):
            return kinds[0](value)
    raise malformed(*(_mistyped(f"body.{name}", kind, value) for kind in kinds))


def _mistyped(place: str, kind: type, value: object) -> Malformed:
    name, noun, unparsed = _TYPES[kind]
    is_unparsed = isinstance(value, str) and bool(unparsed)
    message = f"Input should be a valid {noun}{f', {unparsed}' if is_unparsed else ''}"
    return Malformed(place, f"{name}_{'parsing' if is_unparsed else 'type'}", message, value)


def parse(given: object, *, is_chat: bool, server: JsonObject) -> Request:
    """Parse a request body for a server of which some facts are known. Raises RequestError."""
    if not isinstance(given, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise malformed(Malformed("body", "model_attributes_type", message, given))
    body = as_object(cast("object", given))
    fields: JsonObject = {name: _converted(name, body.get(name)) for name in _FIELDS}
    facts: JsonObject = {**server, **fields, **_facts(body, fields, is_chat=is_chat)}
    refuse_request("requests", facts)
    options = as_object(fields["stream_options"])
    return Request(
        is_chat=is_chat,
        model=fields["model"],
        chat=read_chat(body, server.get("image_tokens", DEFAULT_SOFT_TOKENS)) if is_chat else _text_prompt(body),
        stream=bool(fields["stream"]),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        max_tokens=facts["most_tokens"],
        limit=facts["limit"],
        ignore_eos=bool(fields["ignore_eos"]),
        tools=tuple(as_list(fields["tools"])),
        tool_choice=facts["named_tool"] or facts["tool_choice"],
        schema=facts["schema"],
        choices=tuple(map(str, as_list(as_object(fields["structured_outputs"]).get("choice")))),
        template_kwargs=as_object(fields["chat_template_kwargs"]),
    )


def _facts(body: JsonObject, fields: JsonObject, *, is_chat: bool) -> JsonObject:
    """Return what the rows of refusals read of a body besides its fields. Raises RequestError for what pydantic rejects."""
    stops: list[Any] = [fields["stop"]] if isinstance(fields["stop"], str) else as_list(fields["stop"])
    _check_stops(stops)
    tools, choice = as_list(fields["tools"]), body.get("tool_choice")
    limit = "max_completion_tokens" if is_chat and fields["max_completion_tokens"] is not None else "max_tokens"
    bound, form = as_object(fields["structured_outputs"]), as_object(fields["response_format"])
    schemas: JsonObject = {"json_object": {}, "json_schema": as_object(form.get("json_schema")).get("schema")}
    unsupported = [name for name in _UNSUPPORTED if body.get(name) not in (None, False)]
    unsupported += [name for name in _UNSUPPORTED_FORMS if bound.get(name)]
    return {
        "stream_options": fields["stream_options"] or None,
        "unsupported": unsupported[0] if unsupported else None,
        "has_empty_stop": not all(stops),
        "limit": limit,
        # OpenAI's text completions default to 16 tokens, and so does vLLM.
        "most_tokens": fields[limit] if is_chat or fields[limit] is not None else 16,
        "tool_choice": choice or ("auto" if tools else None),
        "tool_names": [_tool_name(tool, f"body.tools.{index}") for index, tool in enumerate(tools)],
        "named_tool": str(part(as_object(choice), "function").get("name")) if as_object(choice) else None,
        "form": form.get("type"),
        "schema": bound.get("json") or schemas.get(str(form.get("type"))),
        "soft_tokens": as_object(fields["mm_processor_kwargs"]).get("max_soft_tokens"),
        **(_chat_facts(body) if is_chat else _prompt_facts(body)),
    }


def _check_stops(stops: Sequence[object]) -> None:
    if len(stops) > _MAX_STOPS:
        message = f"List should have at most {_MAX_STOPS} items after validation, not {len(stops)}"
        context = {"field_type": "List", "max_length": _MAX_STOPS, "actual_length": len(stops)}
        too_long = Malformed("body.stop", "too_long", message, stops, context)
        raise malformed(_mistyped("body.stop", str, stops), too_long)


def _tool_name(tool: object, place: str) -> str:
    given = as_object(tool)
    function = as_object(given.get("function"))
    if "function" not in given:
        raise malformed(missing(f"{place}.function", given))
    if "name" not in function:
        raise malformed(missing(f"{place}.function.name", function))
    return str(function["name"])


def _chat_facts(body: JsonObject) -> JsonObject:
    messages = as_list(body.get("messages"))
    if body.get("messages") is None:
        raise malformed(missing("body.messages", body))
    for index, message in enumerate(map(as_object, messages)):
        if not isinstance(message.get("role"), str):
            # vLLM lists the error of each kind of message, of which this is one.
            raise malformed(missing(f"body.messages.{index}.CustomChatCompletionMessageParam.role", message))
    kinds = [str(part.get("type")) for message in messages for part in _parts(message)]
    return {"unknown_part": next((kind for kind in kinds if kind not in {"text", *MEDIA}), None)}


def _parts(message: object) -> Sequence[JsonObject]:
    return [as_object(part) for part in as_list(as_object(message).get("content"))]


def _prompts(body: JsonObject) -> Sequence[object]:
    """Return the prompts of a text completion: texts, or lists of ids."""
    prompt = body.get("prompt")
    listed = as_list(prompt)
    if not listed or all(isinstance(item, int) for item in listed):
        return [prompt] if prompt else []
    return listed


def _prompt_facts(body: JsonObject) -> JsonObject:
    prompts = _prompts(body)
    unknown = (token for prompt in prompts for token in as_list(prompt) if not tokens.is_known(token))
    return {"prompts": len(prompts), "unknown_token": next(unknown, None)}


def text_ids(text: str, body: JsonObject) -> list[int]:
    """Return the ids of a body's text, after BOS unless it has no special tokens."""
    bos = [] if body.get("add_special_tokens") is False else [tokens.BOS]
    return bos + tokens.encode(text)


def _text_prompt(body: JsonObject) -> ChatPrompt:
    (prompt,) = _prompts(body)
    if isinstance(prompt, str):
        return ChatPrompt(prompt=tuple(text_ids(prompt, body)), question=prompt, transcript=prompt)
    text = tokens.decode(as_list(prompt))
    return ChatPrompt(prompt=tuple(as_list(prompt)), question=text, transcript=text)


def read_chat(body: JsonObject, image_tokens: int) -> ChatPrompt:
    """Return the tokens of a chat's messages and tools, and the question."""
    chosen = as_object(body.get("mm_processor_kwargs")).get("max_soft_tokens", image_tokens)
    counts = {**tokens.MEDIA, "image": chosen + 2}
    turns: list[tuple[str, str, int]] = []
    media: list[str] = []
    for message in map(as_object, as_list(body.get("messages"))):
        content, found = message.get("content"), _parts(message)
        texts = [str(part.get("text", "")) for part in found if part.get("type") == "text"]
        items = [MEDIA[part["type"]] for part in found if str(part.get("type")) in MEDIA]
        text = content if isinstance(content, str) else "\n".join(texts)
        calls = "".join(str(call) for call in as_list(message.get("tool_calls")))
        turns.append((str(message.get("role")), text + calls, sum(counts[item] for item in items)))
        media += items
    transcript = "\n".join(f"{role}: {text}" for role, text, _ in turns)
    asked = [text for role, text, _ in turns if role == "user"]
    is_result = bool(turns) and turns[-1][0] == "tool"
    if as_list(body.get("tools")) and body.get("tool_choice") != "none":
        turns.insert(0, ("developer", str(body["tools"]), 0))
    add = body.get("add_generation_prompt") is not False
    return ChatPrompt(
        prompt=tuple(tokens.encode_chat(turns, add_generation_prompt=add)),
        question=asked[-1] if asked else "",
        transcript=transcript,
        is_result=is_result,
        media=tuple(media),
    )


def check_items(items: Sequence[str], arguments: Arguments, model: Model) -> None:
    """Reject more items of a modality than `--limit-mm-per-prompt` allows, and sounds for a model without `audio_config`. Raises RequestError."""
    limits: dict[str, int] = {}
    for kind in ("image", "audio", "video"):
        given: object = arguments.limit_mm_per_prompt.get(kind, _UNLIMITED)
        stated = as_object(given).get("count", given)
        limits[kind] = 0 if arguments.language_model_only else stated if isinstance(stated, int) else _UNLIMITED
    kind = next((kind for kind, most in limits.items() if items.count(kind) > most), None)
    facts = {"audio": items.count("audio"), "hears": model.name.startswith(_HEARS)}
    named = {"model": arguments.served_model_name[0], "kind": kind, "most": limits.get(kind or "")}
    refuse_request("items", {**facts, **named})


def check_length(request: Request, max_model_len: int) -> int:
    """Return the maximum number of tokens of the response: what was requested, or what is left of the context. Raises RequestError."""
    prompt, wanted = len(request.chat.prompt), request.max_tokens
    facts = {"prompt_tokens": prompt, "max_model_len": max_model_len, "counted": max_model_len + 1}
    refuse_request("lengths", {**facts, "limit": request.limit, "most_tokens": wanted})
    left = max_model_len - prompt
    return min(wanted or left, left)
