"""Ask a server the questions, store and show the answers; compare runs."""

import json
import shlex
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.outputs import StackOutputs
from engine.stack import require_server, stack_outputs
from loadtest.client.unix_url import plain_url
from scripts.cli.access import ServerAccess, open_stack_access, open_url_access
from scripts.cli.command import say
from scripts.cli.measured.record import now
from scripts.cli.tables import console
from scripts.quality.compare import compare
from scripts.quality.items import KINDS, Kind, QualityItem, all_items, digest
from scripts.quality.options import KINDS_TEXT, QualityCompareOptions, QualityOptions
from scripts.quality.results import SCHEMA_VERSION, QualityHeader, QualityResult, exit_code, share_of
from scripts.quality.run import QualityProgress, QualityRequest, inspect, measure, selected
from scripts.quality.served import served_of
from scripts.quality.speed import measured_speed
from scripts.quality.store import named, new_folder, open_store
from scripts.quality.tables import comparison_json, result_json, show_comparison, show_result

NAME: Final = "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A reachable server, with the outputs of its stack if it has one."""

    access: ServerAccess
    outputs: StackOutputs | None


def ask(options: QualityOptions) -> ExitCode:
    """Ask the questions and return the exit code. Raises CommandRefusedError and AccessError."""
    kinds = _kinds(options.questions.kind)
    if options.resume and options.out is None:
        raise CommandRefusedError("--resume requires the folder of the run. Pass --out DIR.")
    with _opened(options) as server:
        outputs = server.outputs
        info = inspect(server.access, options.server.model or (outputs.served_model if outputs else None))
        served = served_of(info, options.server.stack, outputs)
        if served.simulated is not None:
            say(NAME, "the server is SIMULATED: no model answers, so the figures mean nothing.")
        thinking = options.questions.thinking
        features = outputs.features if outputs else None
        items, left_out = selected(
            all_items(),
            kinds=kinds,
            max_model_len=info.max_model_len,
            max_context=options.questions.max_context,
            thinking=thinking,
            has_tools=features.tools if features else outputs.smoke.expect_tool_calls if outputs else None,
        )
        header = QualityHeader(
            schema_version=SCHEMA_VERSION,
            date=now(),
            url=outputs.endpoint if outputs else plain_url(server.access.base_url),
            set_sha256=digest(all_items()),
            planned=len(items),
            thinking=thinking,
            served=served,
            selected=bool(options.questions.kind or options.questions.max_context),
            left_out=left_out,
        )
        asked = QualityRequest(
            items=items,
            model=info.model,
            max_model_len=info.max_model_len,
            thinking=thinking,
            request_timeout_s=options.questions.request_timeout,
        )
        folder = options.out or new_folder(options.server.stack or _host(options))
        with open_store(folder) as store:
            state = QualityProgress(answers=list(store.start(header, resume=options.resume)))
            say(NAME, f"{len(items)} questions, one at a time; the answers are in {folder}")
            try:
                header, ending = measure(
                    server.access, asked, store, header=header, state=state, report=_Progress(len(items))
                )
            finally:
                _clear()
    result = QualityResult(folder=str(folder), header=header, answers=tuple(state.answers))
    if options.as_json:
        print(json.dumps(result_json(result, ending), ensure_ascii=False))
    show_result(result, ending, console(sys.stderr if options.as_json else sys.stdout))
    if ending != "done":
        words = [word for word in sys.argv[1:] if word != "--resume"]
        out = [] if options.out is not None else ["--out", str(folder)]
        say(NAME, f"continue with: {shlex.join(['python', '-m', 'scripts.quality', *words, *out, '--resume'])}")
    return exit_code(result, ending)


def compare_runs(options: QualityCompareOptions) -> ExitCode:
    """Print the comparison. Exit code 1 if a run is worse than the first by more than chance."""
    results = [named(word) for word in options.runs]
    comparison = compare(results, [measured_speed(result.header.served) for result in results])
    if options.as_json:
        print(json.dumps(comparison_json(comparison), ensure_ascii=False))
    else:
        show_comparison(comparison, console(sys.stdout))
    return ExitCode.FAILED if comparison.is_worse else ExitCode.DONE


def _kinds(words: tuple[str, ...]) -> tuple[Kind, ...]:
    strange = [word for word in words if word not in KINDS]
    if strange:
        raise CommandRefusedError(f"--kind is {strange[0]!r}; it must be one of {KINDS_TEXT}.")
    return tuple(kind for kind in KINDS if not words or kind in words)


@contextmanager
def _opened(options: QualityOptions) -> Generator[_Server]:
    server = options.server
    if (server.stack is None) == (server.url is None):
        raise CommandRefusedError("No server selected. Pass --stack NAME or --url URL.")
    if server.stack is not None:
        outputs = stack_outputs(server.stack)
        require_server(server.stack, outputs, what="measure")
        with open_stack_access(outputs) as access:
            yield _Server(access=access, outputs=outputs)
        return
    with open_url_access(server.url or "") as access:
        yield _Server(access=access, outputs=None)


def _host(options: QualityOptions) -> str:
    return urlsplit(options.server.url or "").hostname or "url"


class _Progress:
    """One line on a terminal; elsewhere, one line when a kind begins."""

    def __init__(self, planned: int) -> None:
        self._planned = planned
        self._kind: Kind | None = None

    def __call__(self, state: QualityProgress, item: QualityItem) -> None:
        share = share_of(state.answers)
        text = f"{len(state.answers)} of {self._planned}, {share.right} right; {item.id} …"
        if sys.stderr.isatty():
            _clear()
            line = f"{NAME}: {text}"[: shutil.get_terminal_size().columns - 1]
            print(line, end="", file=sys.stderr, flush=True)
        elif item.kind != self._kind:
            say(NAME, text)
        self._kind = item.kind


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
