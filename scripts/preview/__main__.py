"""`python -m scripts.preview run | comment`: preview every stack, and show the differences as one comment on a pull request."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, cast

import requests
import typer
from pydantic import ValidationError

from scripts.errors import DONE, FAILED, INTERRUPTED, ScriptError
from scripts.preview.report import MARKER, EnginePreview, StackPreview, comment, from_engine, read_all, report, write
from scripts.pulumi import engine

_PREVIEW_LIMIT_S = 600.0
_CALL_LIMIT_S = 30.0
_PAGE = 100

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=__doc__)


@app.command("run")
def run(
    out: Annotated[Path, typer.Option(help="Folder for one JSON file a stack.")],
    stack: Annotated[
        list[str] | None, typer.Option(help="Only these stacks; default all that have a settings file.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make a stack that the backend does not know yet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Preview stacks one after the other; a failed preview is kept as such. Exit code 1 when one failed."""
    try:
        names = stack or all_stacks()
        previews = [_kept(out, preview(name, create=create)) for name in names]
    except ScriptError as error:
        print(f"preview: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        print("preview: interrupted; finished stacks are kept", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    print(report(previews) if as_json else comment(previews))
    raise typer.Exit(FAILED if any(p.error is not None for p in previews) else DONE)


@app.command("comment")
def post(
    source: Annotated[Path, typer.Option("--from", help="Folder that `run` wrote.")],
    repository: Annotated[str, typer.Option(help="OWNER/NAME", envvar="GITHUB_REPOSITORY")],
    pull_request: Annotated[int, typer.Option(help="The pull request's number.")],
) -> None:
    """Post the previews as one comment, or update the one that is there. The token comes from GITHUB_TOKEN."""
    token = os.environ.get("GITHUB_TOKEN", "")
    try:
        if not token:
            raise ScriptError("GITHUB_TOKEN is not set, so the comment cannot be posted.")  # noqa: TRY301  one way out for all mistakes
        action = upsert_comment(_api(), repository, pull_request, token, comment(read_all(source)))
    except ScriptError as error:
        print(f"preview: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    print(f"preview: comment {action} on {repository}#{pull_request}")


def all_stacks() -> list[str]:
    """Return the stacks that have a settings file, sorted. Raises ScriptError where there are none."""
    files = engine.project_folder().glob("Pulumi.*.yaml")
    names = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files)
    if not names:
        raise ScriptError("There is no Pulumi.<stack>.yaml here.")
    return names


def preview(stack: str, *, create: bool) -> StackPreview:
    """Preview one stack with the engine; a failure becomes part of the result. Raises ScriptError only without an engine."""
    started_s = time.monotonic()
    print(f"preview: {stack} ...", file=sys.stderr, flush=True)
    simulated = "LOCALCLOUD_URL" in os.environ
    cost = _usd_per_hour(stack)
    select = [engine.pulumi(), "stack", "select", *(["--create"] if create else []), stack, "--non-interactive"]
    command = [engine.pulumi(), "preview", "--json", "--non-interactive", "--stack", stack]
    try:
        chosen = _call(select)
        answer = chosen if chosen.returncode != 0 else _call(command)
    except subprocess.TimeoutExpired:
        return StackPreview(
            stack=stack,
            error=f"The preview took longer than {_PREVIEW_LIMIT_S:.0f} s.",
            usd_per_hour=cost,
            simulated=simulated,
        )
    elapsed_s = round(time.monotonic() - started_s, 1)
    parsed = _parse(answer.stdout)
    if answer.returncode != 0 or parsed is None:
        return StackPreview(
            stack=stack, error=_error(answer, parsed), usd_per_hour=cost, simulated=simulated, elapsed_s=elapsed_s
        )
    changes, unchanged, warnings = from_engine(parsed)
    return StackPreview(
        stack=stack,
        changes=changes,
        unchanged=unchanged,
        warnings=warnings,
        usd_per_hour=cost,
        simulated=simulated,
        elapsed_s=elapsed_s,
    )


def upsert_comment(api: str, repository: str, pull_request: int, token: str, body: str) -> str:
    """Create our comment on a pull request or update it in place; returns "created" or "updated". Raises ScriptError with GitHub's own words."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    comments = f"{api}/repos/{repository}/issues/{pull_request}/comments"
    page = 1
    while True:
        found = _github("GET", comments, headers, params={"per_page": str(_PAGE), "page": str(page)})
        items = cast("list[dict[str, object]]", found)
        for item in items:
            if str(item.get("body") or "").startswith(MARKER):
                _github(
                    "PATCH", f"{api}/repos/{repository}/issues/comments/{item['id']}", headers, json_body={"body": body}
                )
                return "updated"
        if len(items) < _PAGE:
            _github("POST", comments, headers, json_body={"body": body})
            return "created"
        page += 1


def _github(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    params: dict[str, str] | None = None,
    json_body: dict[str, str] | None = None,
) -> object:
    try:
        answer = requests.request(method, url, headers=headers, params=params, json=json_body, timeout=_CALL_LIMIT_S)
    except requests.RequestException as error:
        raise ScriptError(f"GitHub could not be reached at {url} ({type(error).__name__}).") from None
    if not answer.ok:
        raise ScriptError(f"GitHub refused {method} {url} with {answer.status_code}: {answer.text[:200]}")
    return cast("object", answer.json())


def _api() -> str:
    return os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")


def _kept(out: Path, result: StackPreview) -> StackPreview:
    write(out, result)
    return result


def _call(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=engine.project_folder(),
        env=engine.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=_PREVIEW_LIMIT_S,
        stdin=subprocess.DEVNULL,
    )


def _parse(text: str) -> EnginePreview | None:
    try:
        return EnginePreview.model_validate_json(text)
    except (ValidationError, json.JSONDecodeError):
        return None


def _error(answer: "subprocess.CompletedProcess[str]", parsed: EnginePreview | None) -> str:
    said = [d.message.strip() for d in (parsed.diagnostics if parsed else None) or () if d.severity == "error"]
    return "\n".join(said) or engine.first_error(answer.stderr or answer.stdout)


def _usd_per_hour(stack: str) -> float | None:
    """Return the plan's cost, or None where the settings are wrong: the preview itself says why."""
    from planning import PlanningError, plan  # noqa: PLC0415  only `run` plans
    from stacks.loading import SettingsError, from_file  # noqa: PLC0415
    from stacks.planned import to_deployment  # noqa: PLC0415

    try:
        return plan(
            to_deployment(from_file(engine.project_folder() / f"Pulumi.{stack}.yaml", project="unknown-project"))
        ).cost.usd_per_hour
    except (SettingsError, PlanningError):
        return None


if __name__ == "__main__":
    app()
