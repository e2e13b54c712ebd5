"""Broken answers: what a model, a parser or a template with a fault makes of a right one.

An answer is a choice of a chat completion in one piece: `{"message": {...}, "finish_reason": ...}`. Only the standard library is
imported, because the tests of the checks draw from here too.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from random import Random
from typing import Any, Final, TypeAlias, cast

Choice: TypeAlias = dict[str, Any]
MARKS: Final = ('<|"|>', "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<turn|>", "<pad>", "<unused7>")
"""Gemma 4's delimiters, and tokens that a broken model writes."""
_REPEATS: Final = 200
_TEXTS: Final = ("other", "", "42")


def broken(choice: Choice, kind: str, chance: Random) -> Choice | None:
    """Return the answer with a fault of this kind; None if it has no part that can break so."""
    changed = deepcopy(choice)
    return changed if KINDS[kind](changed, chance) else None


def _message(choice: Choice) -> dict[str, Any]:
    return choice["message"]


def _calls(choice: Choice) -> list[dict[str, Any]]:
    return _message(choice).get("tool_calls") or []


def _content(choice: Choice) -> str:
    return _message(choice).get("content") or ""


def _written(choice: Choice) -> str:
    """Return the text that a fault can cut: the arguments of the first call, or the content."""
    return str(_calls(choice)[0]["function"]["arguments"]) if _calls(choice) else _content(choice)


def _write(choice: Choice, text: str) -> bool:
    if _calls(choice):
        _calls(choice)[0]["function"]["arguments"] = text
    else:
        _message(choice)["content"] = text
    return True


def _values(choice: Choice) -> Any:  # noqa: ANN401 - any JSON
    """Return the JSON object of an answer: arguments, or content that is one. None without."""
    try:
        found: object = json.loads(_written(choice))
    except ValueError:
        return None
    return cast("Any", found) if isinstance(found, dict) else None


def _places(value: Any, wanted: type | tuple[type, ...] = object) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - any JSON
    """Yield the container and the key of each value of a type inside a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        items = list(enumerate(cast("list[Any]", value)))
    for key, inner in items:
        if isinstance(inner, wanted):
            yield value, key
        yield from _places(inner, wanted)


def _changed(
    choice: Choice, chance: Random, wanted: type | tuple[type, ...], change: Callable[[Any, Random], Any]
) -> bool:
    """Change one value of a type in the JSON of an answer. Return whether there is one."""
    values = _values(choice)
    places = list(_places(values, wanted))
    if not places:
        return False
    container, key = chance.choice(places)
    container[key] = change(container[key], chance)
    return _write(choice, json.dumps(values, ensure_ascii=False))


def _of_another_type(value: Any, chance: Random) -> Any:  # noqa: ANN401 - any JSON
    others: list[Any] = [None]
    if isinstance(value, str):
        others += [7, [value], {"value": value}]
    elif isinstance(value, int):
        others += [2.5, True, str(value), [value]]
    else:
        others += [0, json.dumps(value), {"0": value}]
    return chance.choice(others)


def _wrong_type(choice: Choice, chance: Random) -> bool:
    return _changed(choice, chance, object, _of_another_type)


def _other_value(value: Any, chance: Random) -> Any:  # noqa: ANN401 - any JSON
    others: list[Any] = [[], [value, value]]
    if isinstance(value, str):
        others = [text for text in (*_TEXTS, f"{value}{value}", f"{value[::-1]}?") if text != value]
    elif isinstance(value, int):
        others = [-value - 1, value + 10**9]
    elif value:
        others = [[], [*value, *value]]
    return chance.choice(others)


def _wrong_value(choice: Choice, chance: Random) -> bool:
    if _changed(choice, chance, (str, int, list), _other_value):
        return True
    text = _content(choice)
    shifted = "".join(str((int(letter) + 1) % 10) if letter.isdigit() else letter for letter in text)
    return bool(text) and _write(choice, shifted if shifted != text else "I can not tell.")


def _kept_quotes(choice: Choice, chance: Random) -> bool:
    mark = chance.choice("\"'")
    return _changed(choice, chance, str, lambda text, _chance: f"{mark}{text}{mark}")


def _changed_object(choice: Choice, chance: Random, change: Callable[[dict[str, Any]], object]) -> bool:
    """Change one object in the JSON of an answer. Return whether there is one with a key."""
    values = _values(choice)
    if not values:
        return False
    change(chance.choice([values, *(container[key] for container, key in _places(values, dict))]))
    return _write(choice, json.dumps(values, ensure_ascii=False))


def _lost_key(choice: Choice, chance: Random) -> bool:
    return _changed_object(choice, chance, lambda inner: inner.pop(chance.choice(list(inner))))


def _extra_key(choice: Choice, chance: Random) -> bool:
    return _changed_object(choice, chance, lambda inner: inner.update(extra=1))


def _marks(choice: Choice, chance: Random) -> bool:
    mark = chance.choice(MARKS)
    if _changed(choice, chance, str, lambda text, _chance: f"{mark}{text}"):
        return True
    text = _content(choice)
    at = chance.randrange(len(text) + 1)
    return bool(text) and _write(choice, f"{text[:at]}{mark}{text[at:]}")


def _loop(choice: Choice, chance: Random) -> bool:
    unit = chance.choice(("own ", "\n", "-", "The sky is blue. "))
    if _changed(choice, chance, str, lambda text, _chance: f"{text} {unit * _REPEATS}"):
        return True
    return bool(_content(choice)) and _write(choice, f"{_content(choice)} {unit * _REPEATS}")


def _truncated(choice: Choice, chance: Random) -> bool:
    choice["finish_reason"] = "length"
    text = _written(choice)
    return bool(text) and _write(choice, text[: chance.randrange(len(text))])


def _lost_end(choice: Choice, chance: Random) -> bool:
    text = _written(choice)
    return _values(choice) is not None and _write(choice, text[: -chance.randint(1, min(3, len(text)))])


def _role(choice: Choice, chance: Random) -> bool:
    _message(choice)["role"] = chance.choice(("user", "tool", "model", None))
    return True


def _no_call(choice: Choice, _chance: Random) -> bool:
    calls = _calls(choice)
    _message(choice).update(tool_calls=[], content="It is sunny.")
    return bool(calls)


def _call_as_text(choice: Choice, chance: Random) -> bool:
    calls = _calls(choice)
    if not calls:
        return False
    function = calls[0]["function"]
    marked = f"<|tool_call>call:{function['name']}{function['arguments']}<tool_call|>"
    text = chance.choice([marked, json.dumps(function), f"call:{function['name']}{function['arguments']}"])
    _message(choice).update(tool_calls=[], content=text)
    choice["finish_reason"] = "stop"
    return True


def _call_twice(choice: Choice, _chance: Random) -> bool:
    calls = _calls(choice)
    _message(choice)["tool_calls"] = [*calls, *({**call, "id": f"{call['id']}-2"} for call in calls)]
    return bool(calls)


def _no_call_id(choice: Choice, chance: Random) -> bool:
    for call in _calls(choice):
        call["id"] = chance.choice(("", None))
    return bool(_calls(choice))


def _other_name(choice: Choice, chance: Random) -> bool:
    for call in _calls(choice):
        call["function"]["name"] = chance.choice(("", "run_command", f"{call['function']['name']}_"))
    return bool(_calls(choice))


def _no_json(choice: Choice, chance: Random) -> bool:
    text = _content(choice)
    prose = chance.choice((f"```json\n{text}\n```", f"Here it is: {text}", "Paris is the capital of France."))
    return not _calls(choice) and _values(choice) is not None and _write(choice, prose)


def _text_in_reasoning(choice: Choice, _chance: Random) -> bool:
    message = _message(choice)
    text = f"{message.get('reasoning') or ''}\n{_written(choice)}"
    message.update(reasoning=text, content="", tool_calls=[])
    return True


def _reasoning_in_text(choice: Choice, _chance: Random) -> bool:
    message = _message(choice)
    text = f"thought\n{message.get('reasoning')}\n{_content(choice)}"
    has_reasoning = bool(message.get("reasoning"))
    message.update(reasoning=None, content=text)
    return has_reasoning


def _no_text(choice: Choice, chance: Random) -> bool:
    text = _content(choice)
    _message(choice)["content"] = chance.choice((None, ""))
    return bool(text) and not _calls(choice)


def _no_reasoning(choice: Choice, _chance: Random) -> bool:
    return bool(_message(choice).pop("reasoning", None))


KINDS: Final[Mapping[str, Callable[[Choice, Random], bool]]] = {
    "wrong_type": _wrong_type,
    "wrong_value": _wrong_value,
    "kept_quotes": _kept_quotes,
    "lost_key": _lost_key,
    "extra_key": _extra_key,
    "marks": _marks,
    "loop": _loop,
    "truncated": _truncated,
    "lost_end": _lost_end,
    "role": _role,
    "no_call": _no_call,
    "call_as_text": _call_as_text,
    "call_twice": _call_twice,
    "no_call_id": _no_call_id,
    "other_name": _other_name,
    "no_json": _no_json,
    "text_in_reasoning": _text_in_reasoning,
    "reasoning_in_text": _reasoning_in_text,
    "no_text": _no_text,
    "no_reasoning": _no_reasoning,
}
"""Faults by name. Each changes an answer in place, and returns whether it can."""
