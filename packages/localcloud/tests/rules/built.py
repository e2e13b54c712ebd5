"""The evaluator for tests: used where it is built, built where the environment says so, otherwise a skip with the command."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from localcloud.tests.rules import program
from localcloud.tests.rules.evaluator import Evaluator

_Result = TypeVar("_Result")

BUILD = "LOCALCLOUD_EVALUATOR"
"""`build` compiles the evaluator if it is missing: `.ci/run`, `make long` and the workflows set it, so that only a first run at home skips."""
NOT_BUILT = (
    "the evaluator of alerts is not built. To build it (Go 1.26, one to four minutes, once) and run these tests: "
    f"{BUILD}=build make test-packages TESTS=packages/localcloud/tests/rules"
)


def evaluator_program() -> Path:
    """Return the program. Skip the test if it is not built and nothing says to build it; a build that fails is an error."""
    if program.found() is None and os.environ.get(BUILD) != "build":
        pytest.skip(NOT_BUILT)
    return program.ensure()


def evaluated(work: Callable[[Evaluator], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run work with an evaluator of its own."""

    async def run() -> _Result:
        with TemporaryDirectory(prefix="localcloud-") as folder:
            evaluator = await Evaluator.start(evaluator_program(), Path(folder))
            try:
                return await work(evaluator)
            finally:
                await evaluator.stop()

    return asyncio.run(run())
