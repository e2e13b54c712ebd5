"""Everything that is known is written once: each word of a contract stands in one hand-written place of the code.

Counted are Python files outside tests, without generated files, docstrings, comments and documentation texts (`Doc(...)`, `help=`).
`localcloud` and `provider` import nothing of the rest, so that they can disagree with it: each may write a word once for itself.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pytest

from gemma_serving.contracts import labels, outputs, serving_document
from gemma_serving.contracts.fields import camel_case
from gemma_serving.gke.rules import GKE_RULES
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.planning.settings.vllm_args import OPTIONS
from tests.contract_keys import keys
from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
APART = ("packages/localcloud", "packages/gcp-tpu")
"""Rooms that stand on their own; their words are counted apart."""
ROOMS = (
    "dev/authors",
    "components",
    *APART,
    "gemma_serving",
    "scripts",
    "stacks",
    "dev/tools",
)

DOCUMENTATION = {"Doc", "description", "help", "epilog"}
"""Calls and keywords whose texts are documentation."""

ALLOWED: dict[tuple[str, str], str] = {
    (
        "--load-format",
        "gemma_serving/vm_agent/prefetch.py",
    ): "the agent has the standard library only; it reads a flag of a document",
}
"""Word and file that may repeat it, with the reason."""


@dataclass(frozen=True)
class Place:
    """One place in the code: a file below the root and a line."""

    path: str
    line: int
    text: str

    @property
    def room(self) -> str:
        parts = self.path.split("/")
        return "/".join(parts[:2]) if parts[0] == "packages" else parts[0]

    @property
    def owner(self) -> str:
        """Who may write a word once: a room that stands apart, or all the others together."""
        return self.room if self.room in APART else "the other rooms"

    def __str__(self) -> str:
        return f"  {self.path}:{self.line}: {self.text}"


Found = dict[str, list[Place]]
"""Places by word."""


def is_documentation(node: ast.AST) -> bool:
    """Return whether the strings below a node are documentation."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.keyword(arg=name):
            return name in DOCUMENTATION
        case _:
            return False


@cache
def strings() -> list[tuple[str, Place]]:
    """Return the strings of every hand-written module outside the tests, without documentation. No tree is kept: the garbage collector would walk all."""
    found: list[tuple[str, Place]] = []
    for path in (path for path in tracked(*ROOMS) if "tests" not in path.parts):
        text = path.read_text()
        if not re.search(r"Generated (by|from) ", text[:300]):
            found.extend(strings_of(ast.parse(text), path.relative_to(ROOT).as_posix(), text.splitlines()))
    return found


def strings_of(tree: ast.Module, path: str, lines: list[str]) -> Iterator[tuple[str, Place]]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, Place(path, node.lineno, lines[node.lineno - 1].strip()[:120])
        waiting.extend(child for child in ast.iter_child_nodes(node) if not is_documentation(child))


@cache
def words_of_strings() -> tuple[tuple[frozenset[str], Place], ...]:
    """The words of every string and its place; a word may have hyphens."""
    return tuple((frozenset(re.findall(r"[\w-]+", text)), place) for text, place in strings())


def places_of(words: set[str]) -> Found:
    """Where each word stands in a string, alone or among others."""
    assert words
    found: Found = {word: [] for word in words}
    for word in words:  # such as a path
        if not re.fullmatch(r"[\w-]+", word):
            whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
            found[word] = [place for text, place in strings() if whole.search(text)]
    for those, place in words_of_strings():
        for word in those & words:
            found[word].append(place)
    return found


def unknown_findings() -> Found:
    """Ids of findings in strings that no rule has. A reference names the id, so that a cause or a list of findings is data."""
    known = {*RULES, *GKE_RULES}
    groups = "|".join(sorted({identifier[:3] for identifier in known}))
    found: Found = defaultdict(list)
    for text, place in strings():
        if re.fullmatch(rf"({groups})\d\d", text) and text not in known:
            found[text].append(place)
    return found


def label_words() -> Found:
    return places_of({labels.MANAGED_BY_LABEL, labels.PROJECT_LABEL, labels.STACK_LABEL, labels.URN_LABEL})


def output_keys() -> Found:
    """Keys of the outputs beside their fields. Those of one word, such as `model`, are ordinary words and are not counted."""
    kinds = [kind for kind in vars(outputs).values() if isinstance(kind, type) and kind.__module__ == outputs.__name__]
    keys = {camel_case(each.name) for kind in kinds for each in fields(kind)}
    found: Found = {key: [] for key in keys if key.lower() != key}
    for text, place in strings():
        if text in found:
            found[text].append(place)
    return found


def machine_keys() -> Found:
    """Guest attributes, phases and metadata keys. Those of one word, such as `phase`, are ordinary words and are not counted."""
    words = {*keys()["guest-attributes"], *keys()["phases"], serving_document.DOCUMENT_METADATA_KEY}
    return places_of({word for word in words if not word.isalpha()})


def option_flags() -> Found:
    """Flags of vLLM's options beside their fields; `Flag("--...")` is the field's own marker."""
    flags = {option.flag for option in OPTIONS.values() if option.flag}
    return {flag: [place for place in places if _is_repetition(place)] for flag, places in places_of(flags).items()}


def _is_repetition(place: Place) -> bool:
    """Whether a place repeats a flag. The generated tables of each release's flags (`dev.authors.vllm_flags`) contain all of them."""
    return "Flag(" not in place.text and place.path != "gemma_serving/planning/data/flags.json"


CHECKS: dict[Callable[[], Found], int] = {
    unknown_findings: 0,
    label_words: 1,
    output_keys: 0,
    machine_keys: 1,
    option_flags: 0,
}
"""What is counted, and in how many places a word may stand; `localcloud` and `provider` may always write it once."""


def repeated(found: Found, at_most: int) -> str:
    """Return every word that stands in more places than it may, with each place; an empty text if there is none."""
    paragraphs = []
    for word, places in sorted(found.items()):
        by_owner: dict[str, dict[tuple[str, int], Place]] = defaultdict(dict)
        for place in places:
            if (word, place.path) not in ALLOWED:
                by_owner[place.owner][place.path, place.line] = place
        for owner, mine in sorted(by_owner.items()):
            limit = max(at_most, 1) if owner in APART else at_most
            if len(mine) > limit:
                head = f"{word!r} stands in {len(mine)} places of {owner}; allowed: {limit}"
                paragraphs.append("\n".join([head, *map(str, mine.values())]))
    return "\n".join(paragraphs)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_word_of_a_contract_is_written_once(check):
    if text := repeated(check(), CHECKS[check]):
        pytest.fail(text, pytrace=False)


def test_every_exception_is_still_needed():
    stand = {(word, place.path) for check in CHECKS for word, places in check().items() for place in places}
    assert set(ALLOWED) - stand == set()
