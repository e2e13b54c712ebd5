"""`python -m tools.words`: patterns of hard sentences in all tracked text, and the subjects of new commits.

tools/words.toml has the patterns, with the words to write instead (docs/glossary.md, "Verbs"), the verbs of subjects, and quoted texts that are
left out. Lines are joined before a pattern is searched, and so are the literals of one string. tools/words_budget.toml has the number of hits
of each pattern in each package, which only falls: `--write` lowers it. Tests, fixtures and generated pages are not read.
Exit code 1: a hit above its number, a number above its hits, a total above the last commit's, or a subject to fix.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tools.git import git

ROOT: Final = Path(__file__).resolve().parents[1]
RULES: Final = Path("tools/words.toml")
BUDGET: Final = Path("tools/words_budget.toml")
_CODE: Final = re.compile(r"`[\w.*]+`")
Text = tuple[int, str]
"""Number of its first line, and a paragraph, comment or string, on one line."""
Counts = Mapping[str, Mapping[str, int]]
"""Number of hits by package and pattern."""

NOT_READ: Final = (
    "tests/",
    "evals/",
    "docs/reference/",
    "docs/authors/accuracy.md",
    "docs/authors/assumptions.md",
    "docs/glossary.md",
    "tools/words",
    "LICENSE",
)
"""The glossary and the tables of this tool name what not to write; generated pages are made from texts that are read."""
DATA: Final = frozenset(
    {
        ".json",
        ".jsonl",
        ".csv",
        ".patch",
        ".txt",
        ".in",
        ".svg",
        ".sum",
        ".mod",
        ".log",
        ".urns",
        ".mp4",
        ".typed",
        ".lock",
    }
)
"""Suffixes of files without prose of this project: data, locks, patches of other projects and pictures."""
SPLIT: Final = frozenset({"packages", "docs"})
"""Folders whose folders are counted apart."""
SUBJECT_LIMIT: Final = 72
SINCE: Final = "f210fd8c"
"""The last commit whose subject is not checked: history is not rewritten."""
SHOWN: Final = 12
"""Number of hits that are printed for a number that was exceeded."""
_FENCE: Final = re.compile(r"^\s*```")
_ALONE: Final = re.compile(r"^\s*(\||#{1,6} |[-*] |\d+\. |<)")
"""A line of Markdown that starts a text: a row, a heading, an item, a tag."""
_KEY: Final = re.compile(r"^\s*(\[|[\w.\"-]+ ?[=:] )")
"""A line of a settings or data file that starts a text."""
_MARGIN: Final = re.compile(r"^\s*(#+!?|//+|--|\*|;|>)?\s*")
_SENTENCE: Final = re.compile(r"(?<=[.!?]) (?=[A-Z`\"'(])")
_GENERATED: Final = re.compile(r"[Gg]enerated (by|from) ")
_AREA: Final = re.compile(r"^[\w./-]+(?:(?:, | and |,)[\w./-]+)*: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A sentence with a pattern."""

    path: str
    line: int
    pattern: str
    words: str
    sentence: str

    def __str__(self) -> str:
        """Return the line of the report."""
        return f"{self.path}:{self.line}: {self.pattern} {self.words!r} in {self.sentence[:120]!r}; write: {rules()[self.pattern][1]}"


@cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads((ROOT / RULES).read_text(encoding="utf-8"))


@cache
def rules() -> Mapping[str, tuple[re.Pattern[str], str]]:
    """Return the expression of each pattern and the words to write instead."""
    return {
        name: (re.compile(row["find"], re.MULTILINE), row["instead"]) for name, row in _tables()["patterns"].items()
    }


def texts_in(path: str, text: str) -> Iterator[Text]:
    """Yield the texts of a file."""
    if path.endswith((".py", ".pyi")):
        yield from _of_python(text)
    else:
        yield from _of_lines(text, is_markdown=path.endswith(".md"))


def _of_lines(text: str, *, is_markdown: bool) -> Iterator[Text]:
    """Join lines up to an empty one. In Markdown a row, a heading or an item starts another text, and a line of a block is one."""
    start, lines, fenced = 1, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if is_fence := is_markdown and bool(_FENCE.match(line)):
            fenced = not fenced
        bare = line.strip() if is_markdown else _MARGIN.sub("", line).strip()
        if lines and (not bare or fenced or is_fence or (_ALONE if is_markdown else _KEY).match(line)):
            yield start, " ".join(lines)
            lines = []
        if bare:
            start, lines = (start, [*lines, bare]) if lines else (number, [bare])


def _of_python(text: str) -> Iterator[Text]:
    """Yield comments, consecutive ones as one, and strings: a docstring after three quotes, another string after one."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(token.start[0], token.string.lstrip("#: ")) for token in tokens if token.type == tokenize.COMMENT]
    previous, lines = -1, list[str]()
    for number, comment in [*comments, (len(text), "")]:
        if lines and number != previous + 1:
            yield previous - len(lines) + 1, " ".join(lines)
            lines = []
        previous, lines = number, [*lines, comment]
    yield from _of_node(ast.parse(text))


def _of_node(node: ast.AST) -> Iterator[Text]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
            yield child.lineno, f'"""{" ".join(child.value.value.split())}'
        elif isinstance(child, ast.expr) and " " in (found := _joined(child)):  # one word is a key or a name
            yield child.lineno, f'"{" ".join(found.split())}'
            for each in ast.walk(child):
                if isinstance(each, ast.FormattedValue):  # the strings inside its braces
                    yield from _of_node(each)
        else:
            yield from _of_node(child)


def _joined(node: ast.expr) -> str:
    """Return the text of a string that is written as one or as several literals, with {} for values; empty for another expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(each.value) if isinstance(each, ast.Constant) else "{x}" for each in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts = (_joined(left), _joined(right))
            return "".join(part or "{x}" for part in parts) if any(parts) else ""
        case _:
            return ""


def hits_in(path: str, text: str, allowed: Iterable[str] = ()) -> Iterator[Hit]:
    """Yield each sentence of a file with one of the patterns, once for each match, without the allowed texts and names in backticks."""
    for line, found in texts_in(path, text):
        bare = _CODE.sub("`...`", found)
        for quoted in allowed:
            bare = bare.replace(quoted, "...")
        for sentence in _SENTENCE.split(bare):
            for name, (expression, _) in rules().items():
                for match in expression.finditer(sentence):
                    yield Hit(path=path, line=line, pattern=name, words=match[0].strip(), sentence=sentence)


def is_read(path: str) -> bool:
    """Return whether the words of a tracked file count."""
    return (
        Path(path).suffix not in DATA
        and not path.startswith(NOT_READ)
        and "/tests/" not in path
        and "fixtures/" not in path
        and "/corpus/" not in path
    )


def package_of(path: str) -> str:
    """Return the folder for which the hits of a file count."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: 2 if parts and parts[0] in SPLIT else 1]) or "."


def counts_of(hits: Iterable[Hit]) -> Counts:
    """Return the number of hits by package and pattern."""
    found: dict[str, Counter[str]] = {}
    for hit in hits:
        found.setdefault(package_of(hit.path), Counter())[hit.pattern] += 1
    return found


def excess(hits: Sequence[Hit], budget: Counts, former: Counts | None = None) -> Iterator[str]:
    """Yield each difference between the hits and the budget, and each pattern whose total is above the last commit's."""
    counts = counts_of(hits)
    for package in sorted({*counts, *budget}):
        for name in rules():
            found, allowed = counts.get(package, {}).get(name, 0), budget.get(package, {}).get(name, 0)
            if found > allowed:
                yield f"{package}: {name} has {found} hits, but {BUDGET} allows {allowed}. Write: {rules()[name][1]}."
                yield from [str(hit) for hit in hits if (package_of(hit.path), hit.pattern) == (package, name)][-SHOWN:]
            elif found < allowed:
                yield f"{package}: {name} has {found} hits; `python -m tools.words --write` lowers its {allowed}"
    for name in rules() if former is not None else ():
        now, before = (sum(row.get(name, 0) for row in rows.values()) for rows in (budget, former or {}))
        if now > before:
            yield f"{BUDGET}: the total of {name} rises from {before} to {now}. It may only fall."


def budget_text(counts: Counts) -> str:
    """Return the budget file for these counts."""
    lines = [
        "# Hits of each pattern of tools/words.toml, by package. Numbers only fall: `python -m tools.words --write` lowers them."
    ]
    for package, row in sorted(counts.items()):
        if numbers := [f"{name} = {row[name]}" for name in rules() if row.get(name)]:
            lines += ["", f'["{package}"]', *numbers]
    return "\n".join(lines) + "\n"


def subject_fault(subject: str) -> str | None:
    """Return the fault of a commit's subject, or None."""
    if len(subject) > SUBJECT_LIMIT:
        return f"{len(subject)} characters; at most {SUBJECT_LIMIT}"
    first = _AREA.sub("", subject, count=1).split(" ")[0].lower()
    if first not in _tables()["verbs"]:
        return f"{first!r} is not a verb of {RULES}; start with one: add, fix, report"
    return None


def tracked_hits() -> list[Hit]:
    """Return the hits in all tracked files. Raises FileNotFoundError without git, or for an allowed text that no file has."""
    listed = git(ROOT, "ls-files", "-z")
    if listed is None:
        raise FileNotFoundError("git cannot list the tracked files here, so their words were not checked")
    allowed = [text for texts in _tables()["allowed"].values() for text in texts]
    paths = [path for path in listed.split("\0") if path and is_read(path) and (ROOT / path).is_file()]
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(_hits_of, paths, chunksize=50))
    if unused := set(allowed).difference(*(texts for _, texts in found)):
        raise FileNotFoundError(f"{RULES}: no file has the allowed text {min(unused)!r}. Remove it.")
    return [hit for hits, _ in found for hit in hits]


def _hits_of(path: str) -> tuple[list[Hit], set[str]]:
    """Return the hits of a file and the allowed texts that it has."""
    text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    if path.endswith(".py") and _GENERATED.search(text[:300]):
        return [], set()
    allowed = {each for texts in _tables()["allowed"].values() for each in texts if each in text}
    return list(hits_in(path, text, allowed)), allowed


def main(arguments: Sequence[str] = ()) -> int:
    """Check the tracked files and the subjects of new commits."""
    try:
        hits = tracked_hits()
    except FileNotFoundError as error:
        print(f"words: {error}", file=sys.stderr)
        return 1
    if arguments == ["--list"]:
        print("\n".join(map(str, hits)))
        return 0
    budget = tomllib.loads((ROOT / BUDGET).read_text(encoding="utf-8"))
    if arguments == ["--write"]:
        budget = {name: Counter(row) & Counter(budget.get(name, {})) for name, row in counts_of(hits).items()}
        (ROOT / BUDGET).write_text(budget_text(budget), encoding="utf-8")
    last = git(ROOT, "show", f"HEAD:{BUDGET.as_posix()}")
    faults = list(excess(hits, budget, tomllib.loads(last) if last else None))
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
    sys.exit(main(sys.argv[1:]))
