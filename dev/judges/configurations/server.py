# pyright: basic, reportMissingImports=false
# ruff: noqa: PLC0415, BLE001, ANN401 - the packages are vLLM's, which is imported after the environment is set; whatever it raises is an answer
"""Make vLLM's configuration from the words of each request. Run by the Python of an environment with vLLM; no project code.

`python server.py PLACES < REQUESTS`: a request is a JSON line with `words`, all after `vllm serve`, and `environment`. The answer is a JSON line with
the refusal, empty if vLLM made the configuration. PLACES names the folder with config.json of each path in the
words: a path below /mnt becomes a link in mounts of its own, a URI is redirected by vLLM's VLLM_MODEL_REDIRECT_PATH. So no word is changed.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


class _RefusedError(Exception):
    """A refusal by the parser, which would print it and exit."""


def parser() -> Any:
    """Return the parser of `vllm serve`."""
    from vllm.entrypoints.cli.serve import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise _RefusedError(message)

    return make_arg_parser(Parser(prog="vllm serve"))


def configure(made: Any, words: list[str]) -> None:
    """Make the configuration as `vllm serve` does. Raises what vLLM raises."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext

    parsed = made.parse_args(words)
    if getattr(parsed, "model_tag", None) is not None:
        parsed.model = parsed.model_tag  # as the command `serve` does
    validate_parsed_serve_args(parsed)
    AsyncEngineArgs.from_cli_args(parsed).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def answer(made: Any, request: dict[str, Any]) -> str:
    """Return vLLM's refusal of a request; empty if there is none."""
    before = dict(os.environ)
    os.environ.update(request["environment"])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            configure(made, request["words"])
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    return ""


def show_folders(places: dict[str, str]) -> None:
    """Mount an empty /mnt for this process alone, with a link for each folder in the words."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=True)
    for path, folder in places.items():
        if path.startswith("/"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).symlink_to(folder)


def main(places: str) -> None:
    """Answer each request of standard input."""
    show_folders(json.loads(Path(places).read_text()))
    os.environ.update(OFFLINE, VLLM_MODEL_REDIRECT_PATH=places)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's packages print
    made = parser()
    for line in sys.stdin:
        print(json.dumps(answer(made, json.loads(line))), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
