"""The evaluator for tests: built once, or a skip that says why."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from localcloud.tests.rules import program
from localcloud.tests.rules.evaluator import Evaluator

_Result = TypeVar("_Result")


def evaluator_program() -> Path:
    """Return the program. Skip the test without Go; a program that does not compile is an error."""
    if program.found() is None and shutil.which("go") is None:
        pytest.skip(program.NO_GO)
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
