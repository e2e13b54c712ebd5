"""`python -m scripts.stage_model --stack NAME`: put a stack's weights into its bucket, from the hub or a folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError

from scripts.cloud import staging
from scripts.errors import DONE, INTERRUPTED, REFUSED, ScriptError
from scripts.pulumi import engine
from stacks.loading import SettingsError, from_file
from stacks.naming import Names
from stacks.settings import Settings

_GIB = 1024**3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    stack: Annotated[str, typer.Option(help="The stack whose weights are staged.")],
    folder: Annotated[
        Path | None, typer.Option("--from", help="A folder with the checkpoint; default is the hub.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the hub; default is its main branch.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Make the stack's bucket if it is not there yet (nothing else of the stack), then copy what is missing. Can be run again at any time."""
    try:
        report = _stage(stack, folder, revision)
    except ScriptError as error:
        print(f"stage_model: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except (GoogleAPIError, GoogleAuthError) as error:
        print(f"stage_model: Cloud Storage refused: {str(error).splitlines()[0]}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("stage_model: interrupted; run it again to go on where it stopped", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(report))
    else:
        print(
            f"stage_model: {report['copied']} files copied, {report['kept']} were there: gs://{report['bucket']}/{report['prefix']}"
        )
    raise typer.Exit(DONE)


def _stage(stack: str, folder: Path | None, revision: str | None) -> dict[str, object]:
    settings = _settings(stack)
    if settings.weights != "bucket":
        raise ScriptError(
            f"Stack {stack} has weights: {settings.weights}, so there is nothing to stage; set weights: bucket.",
            exit_code=REFUSED,
        )
    source = staging.FolderSource(folder=folder) if folder is not None else staging.hub(settings.model, revision)
    files = source.files()
    whole_bytes = sum(file.size_bytes for file in files)
    print(f"stage_model: {settings.model}: {len(files)} files, {whole_bytes / _GIB:.2f} GiB", file=sys.stderr)
    name = settings.bucket.existing or Names(project=settings.project, stack=stack).bucket
    if settings.bucket.existing is None:
        _make_bucket(stack)
    done_bytes = 0

    def on_file(file: staging.SourceFile, copied: bool) -> None:
        nonlocal done_bytes
        done_bytes += file.size_bytes
        share = done_bytes / whole_bytes if whole_bytes else 1.0
        print(f"stage_model: {share:4.0%} {'copied' if copied else 'there '} {file.name}", file=sys.stderr, flush=True)

    copied, kept = staging.stage(source, staging.bucket(name, settings.project), settings.weights_prefix, on_file)
    return {
        "stack": stack,
        "bucket": name,
        "prefix": settings.weights_prefix,
        "copied": copied,
        "kept": kept,
        "revision": source.revision,
    }


def _settings(stack: str) -> Settings:
    try:
        return from_file(engine.project_folder() / f"Pulumi.{stack}.yaml")
    except SettingsError as error:
        raise ScriptError(str(error), exit_code=REFUSED) from None


def _make_bucket(stack: str) -> None:
    """Bring up the bucket alone: the server cannot start before its weights are there. Raises ScriptError with the engine's exit code."""
    targets = (
        "**:Provider::gcp",
        "**:index:ModelBucket::models",
        "**$gcp:storage/bucket:Bucket::models",
        "**gcp:projects/service:Service::*",
    )
    command = [
        engine.pulumi(),
        "up",
        "--yes",
        "--skip-preview",
        "--non-interactive",
        "--stack",
        stack,
        *(f"--target={target}" for target in targets),
    ]
    answer = subprocess.run(
        command,
        cwd=engine.project_folder(),
        env=engine.environment(),
        stdout=sys.stderr,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if answer.returncode != 0:
        raise ScriptError(
            f"The bucket of stack {stack} could not be made: `pulumi up` ended with exit code {answer.returncode}, see above."
        )


if __name__ == "__main__":
    app()
