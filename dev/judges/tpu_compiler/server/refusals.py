"""Tells a refusal by vLLM, tpu-inference or the compiler from a failure of the judge, which proves nothing."""

import traceback
from typing import NoReturn

from vllm.utils.argparse_utils import FlexibleArgumentParser

_UPSTREAM = ("/site-packages/vllm/", "/site-packages/tpu_inference/")
_OWN = "/tpu_compiler/server/"
_KINDS = (ValueError, NotImplementedError, AssertionError)
"""Errors by which upstream's code refuses. Any other may come from a replaced function."""


class UpstreamRefusalError(Exception):
    """A refusal in upstream's own words."""

    def __init__(self, words: str, *, program: str = "") -> None:
        super().__init__(words)
        self.program = program


class RefusingParser(FlexibleArgumentParser):
    """vLLM's parser, which raises its complaint and does not print and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise UpstreamRefusalError with the parser's words."""
        raise UpstreamRefusalError(message)


def is_refusal(error: BaseException) -> bool:
    """Return whether upstream refused: in its own words, or by an error in its own files or in what they called."""
    if isinstance(error, UpstreamRefusalError):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    known = [file for file in files if any(folder in file for folder in (*_UPSTREAM, _OWN))]
    # A model that does not fit together fails in JAX, where upstream's code calls it.
    is_upstream = bool(known) and _OWN not in known[-1]
    # pydantic raises what a validator of vLLM's configuration refuses.
    is_config = type(error).__name__ == "ValidationError"
    return is_config or (is_upstream and isinstance(error, _KINDS))
