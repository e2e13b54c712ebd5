"""The work of `gemma stage_model`: list, create the bucket, copy, and write the settings."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ruamel.yaml.error import YAMLError

from gemma_serving.cloud.enabled import await_api, require_apis
from gemma_serving.cloud.google_api import connect
from gemma_serving.cloud.model_files import ADAPTER_CONFIG, CONFIG
from gemma_serving.cloud.staging import copying, sources
from gemma_serving.cloud.staging.bucket import WeightsBucket
from gemma_serving.cloud.staging.copying import CopyPlan, StagingOutcome
from gemma_serving.cloud.staging.sources import SourceFile
from gemma_serving.contracts.chat_template import AGE_WORDS, TEMPLATE, TemplateAge
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.proof import Asker
from gemma_serving.contracts.staged_weights import OWN_FOLDER
from gemma_serving.contracts.three_answers import Absent
from gemma_serving.engine.atomic_file import replace_file
from gemma_serving.engine.runner import project_folder
from gemma_serving.engine.settings_file import SettingsFile
from gemma_serving.planning.question.records import CRASHES
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.units import GIB
from gemma_serving.scripts.cli import command
from gemma_serving.scripts.cli.command import not_written, print_text
from gemma_serving.scripts.cli.transfer import Transfer, overwrite_line
from gemma_serving.scripts.stack.settings import require_staged, stack_settings
from gemma_serving.scripts.stage_model import housekeeping
from gemma_serving.scripts.stage_model.bucket_creation import create_bucket, has_bucket
from gemma_serving.scripts.stage_model.staging_options import StageOptions
from gemma_serving.stacks.apis import apis_of
from gemma_serving.stacks.extra_checkpoints import ExtraCheckpoint, extra_checkpoints, note_source, staging_command

_MIB: Final = 1024**2
_GS: Final = "gs://"
_MEDIA_PARTS: Final = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")
"""Towers and connectors of Gemma 4 (`get_mm_mapping` in gemma4_mm.py of vLLM 0.31.0)."""
_say: Final = partial(command.print_progress, "stage_model")


def stage_model(options: StageOptions) -> ExitCode:
    """Run the command. Raises CommandRefusedError before the first change, and ScriptError."""
    stack, settings = options.stack, stack_settings(options.stack)
    _require_usable(options)
    require_staged(stack, settings)
    if options.list_folders or options.remove is not None:
        return housekeeping.manage(stack, settings, options.remove, yes=options.yes, as_json=options.as_json)
    if not settings.weights_name:
        raise CommandRefusedError(
            "bucket.prefix has no folder for the weights. "
            f"Set it, such as prefix: models/{settings.model.rpartition('/')[2]}."
        )
    require_apis(settings.project, apis_of(settings), say=_say)
    is_missing = settings.bucket.existing is None and not has_bucket(stack, settings)
    is_shared = settings.bucket.existing is not None
    target = WeightsBucket(settings.bucket_name(stack), settings.project, Asker(stack=stack), is_shared=is_shared)
    plans = {settings.model: _plan(options, settings, target)}
    plans |= {extra.source: _plan(options, settings, target, extra) for extra in extra_checkpoints(settings)}
    for name, plan in plans.items():
        _announce(name, plan.source.files())
    _require_bucket(stack, settings, target.name, is_missing=is_missing)
    overwrite = overwrite_line if sys.stderr.isatty() else None
    with Transfer(_say, overwrite=overwrite) as transfer:
        staged = {name: _copied(plan, transfer) for name, plan in plans.items()}
    # Only the hub proves a commit, but a source with the settings' commit keeps that setting.
    model = staged[settings.model]
    proven = model.revision if options.origin is None or model.revision == settings.model_revision else None
    own = settings.vllm.own_template
    ages: dict[str, TemplateAge] = {TEMPLATE: model.template}
    if own is not None:
        ages[own] = staged[own].template
    hashes = {name: _setting(one) for name, one in staged.items() if one is not model and name != own}
    found = {
        "bucket.manifest": _setting(model),
        "modelRevision": proven or None,
        "bucket.parts": hashes or None,
        "bucket.templates": ages,
    }
    for name, age in ages.items():
        _say(f"{name} {AGE_WORDS[age]}.")
    _record(stack, settings, found)
    if options.origin is not None:
        origin = options.origin if options.origin.startswith(_GS) else str(Path(options.origin).resolve())
        try:
            note_source(stack, origin)
        except OSError as error:
            lost = f"The next command for these weights needs --from {origin}."
            _say(f"{not_written(error)} {lost}")
    _show(options, staged, target.name, proven or None)
    return ExitCode.DONE


def _require_bucket(stack: str, settings: Settings, name: str, *, is_missing: bool) -> None:
    """Create the bucket if the state does not have it, or if Google does not. An existing one of others is not created."""
    if is_missing:
        create_bucket(stack, say=_say)
    answer = await_api(connect(settings.project), "storage", f"storage/v1/b/{name}/o?maxResults=1", say=_say)
    if isinstance(answer, Absent) and settings.bucket.existing is None:
        create_bucket(stack, say=_say, is_gone=True)


def _require_usable(options: StageOptions) -> None:
    """Reject options that cannot be combined, and a source that is not a folder. Raises CommandRefusedError."""
    manages = options.list_folders or options.remove is not None
    together = {
        "--list and --remove": options.list_folders and options.remove is not None,
        "--revision and --from": options.origin and options.revision,
    }
    names = next((names for names, are_given in together.items() if are_given), None)
    if names is not None:
        raise CommandRefusedError(f"{names} cannot be combined.")
    if manages and (options.origin or options.revision):
        raise CommandRefusedError("--list and --remove cannot be combined with --from or --revision.")
    origin = options.origin
    if origin is not None and not origin.startswith(_GS) and not Path(origin).is_dir():
        raise CommandRefusedError(
            f"--from is {origin}, which is not a folder. Pass a folder with a {CONFIG}, or gs://BUCKET/FOLDER."
        )


def _plan(
    options: StageOptions, settings: Settings, target: WeightsBucket, extra: ExtraCheckpoint | None = None
) -> CopyPlan:
    """Return the copy of the model, a drafter, an adapter or a template. Raises CommandRefusedError if it is not a checkpoint."""
    origin = options.origin if extra is None else extra.source
    if origin is not None and origin.startswith(_GS):
        bucket, folder = sources.bucket_of(origin)
        source = sources.in_bucket(WeightsBucket(bucket, settings.project), folder)
    elif extra is not None and extra.kind == "template":
        source = sources.file_of(extra.file)
    elif extra is not None:
        source = sources.hub(extra.source, extra.revision)
    elif origin is not None:
        source = sources.FolderSource(folder=Path(origin))
    else:
        source = _model_on_hub(options, settings)
    kind = "model" if extra is None else extra.kind
    if kind != "template":
        tensors = sources.require_checkpoint(source, ADAPTER_CONFIG if kind == "adapter" else CONFIG)
        if kind == "adapter" and any(part in name for name in tensors for part in _MEDIA_PARTS):
            row = CRASHES["vllm-project/vllm#42662"]
            needs = f"--enable-tower-connector-lora, which needs {row.releases[0][1]} or later ({row.source})"
            _say(f"{origin} changes image or audio parts of the model. vLLM ignores that without {needs}.")
    return CopyPlan(
        source=source,
        target=target,
        prefix=settings.weights_name if extra is None else extra.name,
        part_bytes=options.part_size_mib * _MIB,
        workers=options.parallel,
    )


def _model_on_hub(options: StageOptions, settings: Settings) -> sources.HubSource:
    """Return the model on the hub. Raises ScriptError, which names `--from` for the user's own model."""
    try:
        return sources.hub(settings.model, options.revision or settings.model_revision)
    except ScriptError as error:
        command = staging_command(settings, options.stack)
        if "--from" not in command:
            raise
        raise ScriptError(f"{error} If the weights are in a folder, run `{command}`.") from None


def _announce(name: str, files: Sequence[SourceFile]) -> None:
    size = sum(file.size_bytes for file in files)
    real = sum(file.real_bytes for file in files)
    simulated = f" (simulated: the hub of the local cloud sends {size / _MIB:.1f} MiB)" if real else ""
    _say(f"{name}: {len(files)} files, {(real or size) / GIB:.2f} GiB{simulated}")


def _copied(plan: CopyPlan, transfer: Transfer) -> StagingOutcome:
    plan = copying.in_own_folder(plan, transfer)
    return copying.stage(plan, _line_for_each(plan.files, transfer), transfer)


def _line_for_each(files: Sequence[SourceFile], transfer: Transfer) -> Callable[[SourceFile, bool], None]:
    total_bytes = sum(file.size_bytes for file in files)
    done_bytes = 0

    def on_file(file: SourceFile, copied: bool) -> None:
        nonlocal done_bytes
        done_bytes += file.size_bytes
        share = done_bytes / total_bytes if total_bytes else 1.0
        transfer.note(f"{share:4.0%} {'copied' if copied else 'kept  '} {file.name}")

    return on_file


def _setting(staged: StagingOutcome) -> str:
    return f"{OWN_FOLDER}{staged.manifest}"


def _document(staged: StagingOutcome) -> dict[str, object]:
    return {
        "prefix": staged.folder,
        "copied": staged.copied,
        "kept": staged.kept,
        "revision": staged.revision,
        "manifest": staged.manifest,
        "template": staged.template,
    }


def _show(options: StageOptions, staged: Mapping[str, StagingOutcome], bucket: str, revision: str | None) -> None:
    model, *parts = staged.items()
    if options.as_json:
        report = {
            "stack": options.stack,
            "bucket": bucket,
            **_document(model[1]),
            "setting": {"bucket.manifest": _setting(model[1]), "modelRevision": revision},
            "simulated": any(one.is_simulated for one in staged.values()),
            "parts": [{"name": name, **_document(one)} for name, one in parts],
        }
        print_text(json.dumps(report))
        return
    for one in staged.values():
        simulated = " (simulated)" if one.is_simulated else ""
        counts = f"copied {one.copied} files, kept {one.kept}{simulated}"
        print_text(f"stage_model: {counts}, gs://{bucket}/{one.folder}")


def _record(stack: str, settings: Settings, staged: Mapping[str, object]) -> None:
    """Write the hashes and the commit to the stack's file. Raises ScriptError, without a change."""
    path = project_folder() / f"Pulumi.{stack}.yaml"
    before = {
        "bucket.manifest": settings.bucket.manifest,
        "modelRevision": settings.model_revision,
        "bucket.parts": settings.bucket.parts or None,
        "bucket.templates": settings.bucket.templates,
    }
    _write(path, staged)
    changes = {key: value for key, value in staged.items() if value != before[key]}
    for key, value in changes.items():
        text = value if isinstance(value, str) else json.dumps(value)
        why = " because the commit of this source is unknown" if key == "modelRevision" else ""
        done = f"set {key} to {text}" if value is not None else f"removed {key}{why}"
        _say(f"{path.name}: {done}")
    if "bucket.manifest" in changes:
        _say(f"To serve these weights, run `gemma up {stack}`.")


def _write(path: Path, changes: Mapping[str, object]) -> None:
    try:
        before = path.read_text(encoding="utf-8")
        document = SettingsFile(before)
        document.apply(changes)
        after = document.text()
        if after != before:
            replace_file(path.resolve(), after)
    except (OSError, YAMLError, KeyError, TypeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise ScriptError(
            f"The weights are staged, but {path.name} cannot be changed ({why}). "
            f"Set bucket.manifest in it to {changes['bucket.manifest']}."
        ) from None
