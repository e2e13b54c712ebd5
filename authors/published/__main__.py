"""Check that each checkpoint, commit and image in a stack or a table is published.

Sends one HEAD request for each to the Hugging Face hub or to Docker Hub, without a token. Exit code 1: something is missing. A name that
could not be checked is printed as unknown and does not count as missing. The nightly workflow runs this.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch

if TYPE_CHECKING:
    import requests

    from authors.published.names import PublishedName

Answer = Literal["present", "absent", "unknown"]
_LIMIT_S: Final = 30.0
_ABSENT: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND})
"""Status of both hubs, without a token, for a name that does not exist or is private."""


@dataclass(frozen=True, kw_only=True)
class PublishedOptions:
    """Options of the command."""

    as_json: JsonSwitch = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A name, and the response of the hub or the registry."""

    name: "PublishedName"
    answer: Answer
    detail: str


def _published(options: PublishedOptions) -> ExitCode:
    from concurrent.futures import ThreadPoolExecutor

    from authors.published.names import published_names
    from engine.runner import project_folder

    with ThreadPoolExecutor(max_workers=4) as pool:
        checked = list(pool.map(check, published_names(project_folder())))
    if options.as_json:
        print(json.dumps([{**asdict(one.name), "answer": one.answer, "detail": one.detail} for one in checked]))
    else:
        for one in sorted(checked, key=lambda one: (one.answer == "present", one.name.kind, one.name.name)):
            print(f"{one.answer:8} {one.name.kind:10} {one.name.name}: {one.detail}; in {', '.join(one.name.places)}")
    counts = {answer: sum(one.answer == answer for one in checked) for answer in ("present", "absent", "unknown")}
    print("published: " + ", ".join(f"{count} {answer}" for answer, count in counts.items()), file=sys.stderr)
    return ExitCode.FAILED if counts["absent"] else ExitCode.DONE


def check(name: "PublishedName") -> Checked:
    """Check one name."""
    import requests

    try:
        status = (_image if name.kind == "image" else _checkpoint)(name.name).status_code
    except (requests.RequestException, ValueError, KeyError) as error:
        return Checked(name=name, answer="unknown", detail=f"cannot be reached ({type(error).__name__})")
    answer: Answer = "present" if status == HTTPStatus.OK else "absent" if status in _ABSENT else "unknown"
    return Checked(name=name, answer=answer, detail=f"HTTP {status}")


def _checkpoint(name: str) -> "requests.Response":
    import requests

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    model, _, commit = name.partition("@")
    path = f"{model}/revision/{commit}" if commit else model
    return requests.head(f"{endpoint}/api/models/{path}", timeout=_LIMIT_S, allow_redirects=True)


def _image(name: str) -> "requests.Response":
    from scripts.doctor.model import ask_registry

    repository, _, digest = name.partition("@")
    return ask_registry(repository, digest)


COMMAND: Final = Command(name="published", room="authors", help=__doc__, options=PublishedOptions, run=_published)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
