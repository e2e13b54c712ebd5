"""Prompts from a file: JSONL with `prompt` or `messages`, or conversations in ShareGPT's format.

ShareGPT's format is a JSON array (or JSONL) of `{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}`.
vLLM's benchmark reads it the same way (vllm/benchmarks/datasets, `ShareGPTDataset`). The first human message is the prompt, and the reply's length
is the length to generate.

A file is scanned once. Memory only stores the position of each row, 16 bytes per row. A row is read again when its request is created.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from loadtest.client.json_values import as_list, as_mapping
from loadtest.errors import SweepError

ROLES: Final = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "assistant": "assistant", "system": "system",
}  # fmt: skip
BLOCK: Final = 1 << 20
DEFAULT_CHARACTERS_PER_TOKEN: Final = 4.0
SAMPLE_CHARACTERS: Final = 20_000

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Positions of the rows in a file."""

    path: Path
    starts: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    def add(self, start: int, size: int) -> None:
        """Add one row."""
        self.starts.append(start)
        self.sizes.append(size)


class RowReader:
    """A file open for reading single rows."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._file: IO[bytes] = places.path.open("rb")

    def read(self, number: int) -> bytes:
        """Return the bytes of a row."""
        self._file.seek(self._places.starts[number])
        return self._file.read(self._places.sizes[number])


def spans(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the bytes of each row: of a line of JSONL or CSV, or of an element of a JSON array.

    Raises SweepError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            first = file.read(BLOCK).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            file.seek(0)
            yield from (_elements(path, file) if first == b"[" else _lines(file))
    except OSError as error:
        raise SweepError(f"Cannot read {path}: {error.strerror}.") from None


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    start = 0
    for line in file:
        row = line.removeprefix(b"\xef\xbb\xbf") if start == 0 else line
        if row.strip():
            yield start + len(line) - len(row), row.rstrip(b"\r\n")
        start += len(line)


def _elements(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of one JSON array, with only a few in memory at any time.

    The bytes are decoded as Latin-1, one character per byte. JSON's own characters are ASCII, so the positions stay right.
    """
    decoder = json.JSONDecoder()
    text, base = file.read(BLOCK).decode("latin-1"), 0
    position, ended = text.index("[") + 1, False
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position < len(text) and text[position] == "]":
            return
        try:
            _, end = decoder.raw_decode(text, position)
        except ValueError as error:
            if ended:
                raise SweepError(f"{path} is not a JSON array: {error.args[0]} after byte {base + position}.") from None
            more = file.read(BLOCK).decode("latin-1")
            ended = not more
            base = base + position
            text = text[position:] + more
            position = 0
            continue
        yield base + position, text[position:end].encode("latin-1")
        position = end


def as_object(raw: bytes) -> dict[str, Any]:
    """Return a row as a JSON object. Raises ValueError with the problem."""
    try:
        found: object = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - an invalid row of a file
    return found  # pyright: ignore[reportUnknownVariableType] - the keys of a JSON object are text


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRow:
    """One prompt or conversation."""

    prompt: str | None
    """Text of a prompt, or None for messages."""
    messages: tuple[Message, ...]
    """Messages up to the last user message, or all messages of a conversation (`turns`)."""
    output_tokens: int | None
    reply_characters: int | None
    """Characters of the reply in the file, or None without one."""

    @property
    def characters(self) -> int:
        """Characters of the input."""
        return len(self.prompt or "") + sum(len(_text_of(message["content"])) for message in self.messages)

    @property
    def user_texts(self) -> list[Any]:
        """Contents of the user's messages, the turns of a session."""
        if self.prompt is not None:
            return [self.prompt]
        return [message["content"] for message in self.messages if message["role"] == "user"]


def parse_row(raw: bytes, *, whole: bool = False) -> DatasetRow:
    """Read one row. `whole` keeps every message of a conversation. Raises ValueError with the problem."""
    row = as_object(raw)
    output_tokens = row.get("output_tokens")
    if output_tokens is not None and (not isinstance(output_tokens, int) or output_tokens < 1):
        raise ValueError(f"has output_tokens {output_tokens!r}, but it must be a whole number of 1 or more")
    prompt = row.get("prompt")
    if isinstance(prompt, str) and prompt:
        return DatasetRow(prompt=prompt, messages=(), output_tokens=output_tokens, reply_characters=None)
    messages = _messages(row)
    asked = [number for number, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        raise ValueError("has no prompt, no user message in `messages`, nor a human message in `conversations`")
    # ShareGPT: the first exchange. Messages: the conversation up to its last question.
    end = (asked[0] if "conversations" in row else asked[-1]) + 1
    reply = messages[end] if end < len(messages) and messages[end]["role"] == "assistant" else None
    return DatasetRow(
        prompt=None,
        messages=tuple(messages if whole else messages[:end]),
        output_tokens=output_tokens,
        reply_characters=len(_text_of(reply["content"])) if reply is not None else None,
    )


def _text_of(content: object) -> str:
    """Return the text of a message's content. Images and audio have none."""
    if isinstance(content, str):
        return content
    return "".join(str(as_mapping(part).get("text", "")) for part in as_list(content))


def _messages(row: Mapping[str, Any]) -> list[Message]:
    found: list[Message] = []
    for item in as_list(row.get("messages")):
        message = as_mapping(item)
        if "role" not in message or "content" not in message:
            raise ValueError("has a message without role or content")
        found.append(message)
    for item in as_list(row.get("conversations")):
        message = as_mapping(item)
        role, text = ROLES.get(str(message.get("from", message.get("role")))), message.get("value")
        if role is None or not isinstance(text, str):
            raise ValueError(f"has a turn from {message.get('from')!r} without text or with an unknown role")
        found.append({"role": role, "content": text})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Usable rows of a file and their average length. Sent to the processes of the load generator."""

    places: Places
    default_output_tokens: int
    characters_per_token: float

    def output_tokens_of(self, row: DatasetRow) -> int:
        """Return the tokens to generate: the row's value, the length of the reply in the file, or the option's value."""
        if row.output_tokens is not None:
            return row.output_tokens
        if row.reply_characters is not None:
            return max(1, round(row.reply_characters / self.characters_per_token))
        return self.default_output_tokens


@dataclass(slots=True, kw_only=True)
class DatasetFacts:
    """Result of a dataset scan."""

    rows: int = 0
    too_long: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    characters: int = 0
    all_text: bool = True
    """True if every row is a plain prompt and can be sent to /v1/completions."""
    replies_estimated: int = 0
    multi_turn: int = 0


def sample_text(path: Path) -> str:
    """Return text of the first rows, to measure the characters per token."""
    parts: list[str] = []
    for _, raw in spans(path):
        row = _checked(path, len(parts) + 1, raw, whole=False)
        parts += [_text_of(content) for content in row.user_texts]
        if sum(map(len, parts)) >= SAMPLE_CHARACTERS:
            break
    return "\n".join(parts)[:SAMPLE_CHARACTERS]


def _checked(path: Path, number: int, raw: bytes, *, whole: bool) -> DatasetRow:
    try:
        return parse_row(raw, whole=whole)
    except ValueError as error:
        raise SweepError(
            f"--dataset {path}: row {number} {error}. A row has prompt, messages or conversations, and optionally output_tokens."
        ) from None


def scan_dataset(
    path: Path,
    *,
    default_output_tokens: int,
    characters_per_token: float,
    overhead_tokens: int,
    max_model_len: int | None,
    whole: bool,
) -> tuple[Dataset, DatasetFacts]:
    """Check every row and record the positions of usable ones. Raises SweepError if a row is invalid or none is usable.

    A row whose estimated length exceeds max-model-len is skipped, because it only measures how fast the server rejects it.
    """
    dataset = Dataset(
        places=Places(path=path),
        default_output_tokens=default_output_tokens,
        characters_per_token=characters_per_token,
    )
    facts = DatasetFacts()
    for start, raw in spans(path):
        facts.rows += 1
        row = _checked(path, facts.rows, raw, whole=whole)
        output = dataset.output_tokens_of(row)
        given = row.characters / characters_per_token + overhead_tokens
        if max_model_len is not None and given + output > max_model_len:
            facts.too_long += 1
            continue
        dataset.places.add(start, len(raw))
        facts.input_tokens += given
        facts.output_tokens += output
        facts.all_text = facts.all_text and row.prompt is not None
        facts.replies_estimated += row.output_tokens is None and row.reply_characters is not None
        facts.multi_turn += len(row.user_texts) > 1
    usable = len(dataset.places)
    if not usable:
        why = f"all {facts.rows} rows are longer than max-model-len {max_model_len}" if facts.rows else "it has no rows"
        raise SweepError(f"--dataset {path} has no usable row: {why}.")
    facts.input_tokens /= usable
    facts.output_tokens /= usable
    return dataset, facts
