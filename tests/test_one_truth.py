"""Everything that is known is written once: each word of a contract stands in one hand-written place of the code.

Counted are Python files outside tests, without generated files, docstrings, comments and documentation texts (`Doc(...)`, `help=`).
`localcloud` and `provider` import nothing of the rest, so that they can disagree with it: each may write a word once for itself.
`python -m tests.test_one_truth` prints what is found.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

import pytest

from gemma_serving.contracts import labels, outputs, serving_document
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.fields import camel_case
from gemma_serving.gke.rules import GKE_RULES
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.planning.rules.gateway import GATEWAY_RULES
from gemma_serving.planning.settings.vllm_args import OPTIONS
from tests.contract_keys import keys

ROOT = Path(__file__).parents[1]
APART = ("packages/localcloud", "packages/gcp-tpu")
"""Rooms that stand on their own; their words are counted apart."""
ROOMS = (
    "authors",
    "components",
    *APART,
    "gemma_serving",
    "scripts",
    "stacks",
    "tools",
)

DOCUMENTATION = {"Doc", "description", "help", "epilog"}
"""Calls and keywords whose texts are documentation."""

EXITS = {"exit", "Exit", "SystemExit", "_exit"}
"""Calls whose number is an exit code."""

ALLOWED: dict[tuple[str, str], str] = {
    (
        "0",
        "gemma_serving/vm_agent/entry.py",
    ): "the agent is a systemd unit, not a command; systemd asks only whether it failed",
    ("1", "gemma_serving/vm_agent/entry.py"): "the same",
    (
        "--load-format",
        "gemma_serving/vm_agent/prefetch.py",
    ): "the agent has the standard library only; it reads a flag of a document",
    (
        "0",
        "gemma_serving/vm_agent/starter.py",
    ): "a container's program, not a command; Cloud Run asks only whether it failed",
    ("1", "gemma_serving/vm_agent/starter.py"): "the same",
    ("--enable-auto-tool-choice", "packages/localcloud/vllm/generation.py"): "an error message of vLLM, word for word",
    ("--tool-call-parser", "packages/localcloud/vllm/generation.py"): "the same",
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


@dataclass(frozen=True)
class Contents:
    """What the code holds that is counted, each with its place."""

    strings: list[tuple[str, Place]] = field(default_factory=list)
    """Without docstrings and documentation texts."""
    classes: list[tuple[str, Place]] = field(default_factory=list)
    exits: list[tuple[str, Place]] = field(default_factory=list)
    """Constants that a call takes as its exit code."""


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
def contents() -> Contents:
    """Read every hand-written module outside the tests, once. No tree is kept: the garbage collector would walk all of them again and again."""
    found = Contents()
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "tests" not in path.parts):
        text = path.read_text()
        if not re.search(r"Generated (by|from) ", text[:300]):
            read(ast.parse(text), path.relative_to(ROOT).as_posix(), text.splitlines(), found)
    return found


def read(tree: ast.Module, path: str, lines: list[str], found: Contents) -> None:
    """Add what a module holds."""

    def place(node: ast.stmt | ast.expr) -> Place:
        return Place(path, node.lineno, lines[node.lineno - 1].strip()[:120])

    waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
    while waiting:
        node, is_counted = waiting.pop()
        is_counted = is_counted and not is_documentation(node)
        match node:
            case ast.Constant(value=str(text)) if is_counted:
                found.strings.append((text, place(node)))
            case ast.ClassDef(name=name):
                found.classes.append((name, place(node)))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in EXITS:
                values = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "code")]
                found.exits.extend(
                    [(str(value.value), place(node)) for value in values if isinstance(value, ast.Constant)]
                )
            case _:
                pass
        waiting.extend((child, is_counted) for child in ast.iter_child_nodes(node))


@cache
def words_of_strings() -> tuple[tuple[frozenset[str], Place], ...]:
    """The words of every string and its place; a word may have hyphens."""
    return tuple((frozenset(re.findall(r"[\w-]+", text)), place) for text, place in contents().strings)


def places_of(words: set[str]) -> Found:
    """Where each word stands in a string, alone or among others."""
    assert words
    found: Found = {word: [] for word in words}
    for word in words:  # such as a path
        if not re.fullmatch(r"[\w-]+", word):
            whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
            found[word] = [place for text, place in contents().strings if whole.search(text)]
    for those, place in words_of_strings():
        for word in those & words:
            found[word].append(place)
    return found


def unknown_findings() -> Found:
    """Ids of findings in strings that no rule has. A reference names the id, so that a cause or a list of findings is data."""
    known = {*RULES, *GATEWAY_RULES, *GKE_RULES}
    groups = "|".join(sorted({identifier[:3] for identifier in known}))
    found: Found = defaultdict(list)
    for text, place in contents().strings:
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
    for text, place in contents().strings:
        if text in found:
            found[text].append(place)
    return found


def machine_keys() -> Found:
    """Guest attributes, phases and metadata keys. Those of one word, such as `phase`, are ordinary words and are not counted."""
    words = {*keys()["guest-attributes"], *keys()["phases"], serving_document.DOCUMENT_METADATA_KEY}
    return places_of({word for word in words if not word.isalpha()})


def exit_codes() -> Found:
    """Numbers of exit codes beside `ExitCode`."""
    found: Found = {str(int(code)): [] for code in ExitCode}
    for code, place in contents().exits:
        if code in found:
            found[code].append(place)
    return found


def option_flags() -> Found:
    """Flags of vLLM's options beside their fields; `Flag("--...")` is the field's own marker."""
    flags = {option.flag for option in OPTIONS.values() if option.flag}
    return {flag: [place for place in places if _is_repetition(place)] for flag, places in places_of(flags).items()}


def _is_repetition(place: Place) -> bool:
    """Whether a place repeats a flag. The generated tables of each release's flags (`authors.vllm_flags`) hold them all."""
    return "Flag(" not in place.text and place.path != "gemma_serving/planning/data/flags.json"


CHECKS: dict[Callable[[], Found], int] = {
    unknown_findings: 0,
    label_words: 1,
    output_keys: 0,
    machine_keys: 1,
    exit_codes: 0,
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


def classes_of_several_rooms() -> str:
    """Return every public class whose name is defined in more than one room, with each place."""
    found: dict[str, dict[str, Place]] = defaultdict(dict)
    for name, place in contents().classes:
        if not name.startswith("_"):
            found[name].setdefault(place.room, place)
    return "\n".join(
        "\n".join([f"class {name} is defined in {len(rooms)} rooms", *map(str, rooms.values())])
        for name, rooms in sorted(found.items())
        if len(rooms) > 1
    )


def judge(text: str) -> None:
    if text:
        pytest.fail(text, pytrace=False)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_word_of_a_contract_is_written_once(check):
    judge(repeated(check(), CHECKS[check]))


def test_a_public_class_has_one_meaning_in_the_whole_repository():
    judge(classes_of_several_rooms())


def test_every_exception_is_still_needed():
    stand = {(word, place.path) for check in CHECKS for word, places in check().items() for place in places}
    assert set(ALLOWED) - stand == set()


if __name__ == "__main__":
    for counted, most in CHECKS.items():
        print(f"# {counted.__name__}\n{repeated(counted(), most)}\n")
    print(f"# classes\n{classes_of_several_rooms()}")
