"""Hooks of MkDocs for `make site`: the pages of the repository as a site, without a second copy of any text.

Pages outside docs/ become pages of the site. Links between pages are rewritten to the site's own, links to other files to the repository.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
_SCHEMA: Final = ROOT / "packages" / "gcp-tpu" / "gcp_tpu_provider" / "schema.json"
REPOSITORY: Final[str] = json.loads(_SCHEMA.read_text(encoding="utf-8"))["repository"]
OUTSIDE: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "docs/README.md": "questions.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "packages/gcp-tpu/README.md": "packages/gcp-tpu.md",
    "packages/loadtest/README.md": "packages/loadtest.md",
    "packages/localcloud/README.md": "packages/localcloud.md",
}
"""Pages with another path on the site, by path in the repository."""
_UNLISTED: Final[Mapping[str, str]] = {
    f"dev/docs/{name}": f"dev/{name}"
    for name in sorted(path.relative_to(ROOT / "dev" / "docs").as_posix() for path in ROOT.glob("dev/docs/**/*.md"))
}
"""Pages for authors: neither in the navigation nor in the search, links lead to them (`not_in_nav` of mkdocs.yml)."""
_ADDRESSES: Final[Mapping[str, str]] = {**OUTSIDE, **_UNLISTED}
_FOLDERS: Final = {"Guides": "docs", "Reference": "docs/reference"}
"""Folder whose pages without a section belong to a group."""
_NOT_SEARCHED: Final = ("dev/", "architecture.md", "contributing.md")
_LISTS: Final = ("reference/", "changelog.md", "questions.md")
"""Pages that name everything: in the search, they come after a page that answers."""
_HOME: Final[Mapping[str, str]] = {address: path for path, address in _ADDRESSES.items()}
_LINK: Final = re.compile(r"(\]\()((?!\w+:|#|\))[^)#\s]*)")
_NESTED: Final = re.compile(r"^ {2,3}(?=\S)")
_LIST: Final = re.compile(r"^(\d+\.|-) ")
_LINKED: Final = re.compile(r"\]\((?!\w+:)([^)#\s]+\.md)")


def on_files(files: Any, *, config: Any, **_: Any) -> Any:  # noqa: ANN401  MkDocs is not installed where types are checked
    """Add the pages outside docs/, and docs/README.md at its other path."""
    index = files.get_file_from_path("README.md")
    files.remove(index)
    for path, address in _ADDRESSES.items():
        files.append(index.generated(config, address, abs_src_path=str(ROOT / path)))
    return files


def on_config(config: Any) -> Any:  # noqa: ANN401  as above
    """Set the navigation: a group for each section of docs/README.md with the pages that it links to, then the users' pages that no section has."""
    seen = {"docs/README.md", "README.md"}
    groups: dict[str, list[str]] = {}
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8").replace("# Documentation", "## Guides", 1)
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        targets = [posixpath.normpath(f"docs/{target}") for target in _LINKED.findall(section)]
        ours = [path for path in dict.fromkeys(targets) if path in OUTSIDE or path.startswith("docs/")]
        fresh = [path for path in ours if path not in seen and (ROOT / path).is_file()]
        seen.update(fresh)
        groups[section.splitlines()[0].strip()] = fresh
    for title, folder in _FOLDERS.items():
        rest = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / folder).glob("*.md"))]
        rest += [path for path in OUTSIDE if title == "Reference"]
        groups[title] = [*groups.get(title, ()), *(path for path in dict.fromkeys(rest) if path not in seen)]
        seen.update(rest)
    pages = [{title: [_address(path) for path in paths]} for title, paths in groups.items() if paths]
    config["nav"] = [{"Home": "index.md"}, {"Documentation": "questions.md"}, *pages]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:  # noqa: ANN401  as above
    """Rewrite links, and indent what belongs to an item of a list by the four spaces that Python-Markdown requires."""
    address = page.file.src_uri
    if address.startswith(_NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    elif address.startswith(_LISTS):
        page.meta["search"] = {"boost": 0.3}
    return "\n".join(_lines(markdown, _HOME.get(address, f"docs/{address}"), address))


def _lines(markdown: str, path: str, address: str) -> Iterator[str]:
    fenced = in_list = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip():
            in_list = bool(_LIST.match(line)) or (in_list and line.startswith(" "))
        if fenced:
            yield line
        else:
            nested = f"    {line.lstrip()}" if in_list and _NESTED.match(line) else line
            yield _LINK.sub(lambda link: link[1] + _target(link[2], path, address), nested)


def _target(target: str, path: str, address: str) -> str:
    """Return a link of a page of the repository as a link of its page on the site."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if found == "dev/docs/decisions":
        found = "dev/docs/decisions/smaller.md"
    if found in _ADDRESSES or (found.startswith("docs/") and "/." not in found and (ROOT / found).is_file()):
        return posixpath.relpath(_address(found), posixpath.dirname(address) or ".")
    return f"{REPOSITORY}/blob/main/{found}" if (ROOT / found).exists() else target


def _address(path: str) -> str:
    return _ADDRESSES.get(path, path.removeprefix("docs/"))
