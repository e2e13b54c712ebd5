"""`python -m tools.words`: words that are never right here, and the subjects of new commits.

The words are those of docs/glossary.md, "Verbs". `tools/words_allowed.toml` lists the files that still have some, with how many lines; a
number there can only shrink. Tests, fixtures and generated pages are not read. Exit code 1: a word, a stale number or a subject to fix.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.git import git

ROOT: Final = Path(__file__).resolve().parents[1]
ALLOWED: Final = ROOT / "tools" / "words_allowed.toml"

INSTEAD: Final[Mapping[str, str]] = {
    r"(?i)\bmend(s|ed|ing)?\b": "fix",
    r"(?i)\buntold\b|\bcannot be told\b|\bnot to be told\b": "unknown",
    r"(?i)\b(be|is|are|was|were) told\b": "reported, notified, distinguished",
    r'"""Tell (if|whether)\b': "Return whether",
    r"(?i)\bstands? (in|at|beside|below|above|there|on|under|behind|before|after|between)\b(?! for)": "is, is listed, is stored",
    r"\b(is|are|was|were) no (?!longer\b|more than\b|less than\b|later than\b|earlier than\b)": "is not a",
    r"(?i)\b(nobody|somebody|everybody)\b": "the actor: another user, another deployment, the public",
    r"(?i)\bmeanwhile\b": "in the meantime",
    r"(?i)\bdearest\b": "most expensive",
    r"(?i)\b(its|stack's|the same) marks\b": "its labels",
    r"(?i)\bwithout it\.": "Default: X.",
    r"(?i)(?<!on the )\bways? out\b|\bin vain\b": "alternative; without success",
}
"""Words that are never right, as expressions, and what to write."""

SUFFIXES: Final = frozenset({".md", ".py", ".toml", ".yaml", ".yml", ".j2", ".json", ".sh"})
NOT_READ: Final = (
    "tests/",
    "docs/reference/",
    "docs/authors/accuracy.md",
    "docs/authors/assumptions.md",
    "docs/glossary.md",
    "tools/words.py",
    "tools/words_allowed.toml",
)
"""The glossary names what not to write; the generated pages are made from texts that are read."""

SUBJECT_LIMIT: Final = 72
NOT_A_VERB: Final = frozenset({"a", "an", "the", "what", "who", "how", "no", "each"})
SINCE: Final = "c6eabebe"
"""The last commit whose subject is not checked: history is not rewritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One line with a word that is never right."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        """Return the line of the report."""
        return f"{self.path}:{self.line}: {self.word!r}; write: {self.instead}"


def hits_in(path: str, text: str) -> Iterator[Hit]:
    """Yield each line of a file that has one of the words, once for each word."""
    for number, line in enumerate(text.splitlines(), start=1):
        for expression, instead in INSTEAD.items():
            if found := re.search(expression, line):
                yield Hit(path=path, line=number, word=found[0], instead=instead)


def is_read(path: str) -> bool:
    """Return whether the words of a tracked file count."""
    return (
        Path(path).suffix in SUFFIXES
        and not path.startswith(NOT_READ)
        and "/tests/" not in path
        and "fixtures/" not in path
    )


def excess(hits: Sequence[Hit], allowed: Mapping[str, int]) -> Iterator[str]:
    """Yield what is beyond the allow list, and each of its numbers that is larger than what the file has."""
    by_file: dict[str, list[Hit]] = {}
    for hit in hits:
        by_file.setdefault(hit.path, []).append(hit)
    for path, found in by_file.items():
        if len(found) > allowed.get(path, 0):
            yield from map(str, found)
    for path, number in allowed.items():
        if number > len(by_file.get(path, ())):
            yield f"{ALLOWED.name}: {path} has {len(by_file.get(path, ()))}; lower its {number}"


def subject_fault(subject: str) -> str | None:
    """Return what is wrong with the subject of a commit; None if nothing is."""
    first = subject.rpartition(": ")[2].split(" ")[0].lower()
    if len(subject) > SUBJECT_LIMIT:
        return f"{len(subject)} characters; at most {SUBJECT_LIMIT}"
    return f"begins with {first!r}; begin with a verb: add, fix, report" if first in NOT_A_VERB else None


def tracked_hits() -> list[Hit]:
    """Return the hits in all files that git tracks. Raises FileNotFoundError where git or its folder is missing."""
    listed = git(ROOT, "ls-files", "-z")
    if listed is None:
        raise FileNotFoundError("git cannot list the tracked files here, so their words were not checked")
    return [
        hit
        for path in listed.split("\0")
        if path and is_read(path) and (ROOT / path).is_file()
        for hit in hits_in(path, (ROOT / path).read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Check the tracked files and the subjects of new commits."""
    allowed = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    try:
        faults = list(excess(tracked_hits(), allowed))
    except FileNotFoundError as error:
        print(f"words: {error}", file=sys.stderr)
        return 1
    subjects = git(ROOT, "log", "--no-merges", "--format=%h %s", f"{SINCE}..HEAD")
    if subjects is None:
        print("words: the subjects of commits were not checked: this checkout lacks the history", file=sys.stderr)
    for line in (subjects or "").splitlines():
        commit, _, subject = line.partition(" ")
        if fault := subject_fault(subject):
            faults.append(f"commit {commit}: {subject!r}: {fault}")
    print("\n".join(faults) if faults else "words: ok", file=sys.stderr if faults else sys.stdout)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
