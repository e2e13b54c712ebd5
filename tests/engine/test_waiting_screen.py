"""What a person sees while Google has no capacity, in terminals of 80, 100 and 200 columns."""

import re
import sys

import pytest

from tests.engine.terminal import Terminal

STACK = "tpu-v6e1"
ZONE = "us-east5-a"
FIGURES = re.compile(rf"\d+m?\d*s?/24h {ZONE} WAITING")
CAPACITY = "gcp-tpu:index:QueuedResource"
LINES = 60

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def waiting(workspace):
    """A stack whose zones have no capacity; it waits a day in the first."""
    workspace.pulumi("stack", "init", STACK)
    workspace.wait_for_capacity(STACK)
    none = {"accelerator_types": ["v6e-1"], "flex_start": True, "capacity": {"v6e-1": 0}}
    zones = workspace.admin("scenario")["tpu"]["zones"]
    workspace.change_scenario({"tpu": {"zones": dict.fromkeys(zones, none)}})
    return workspace


@pytest.fixture(autouse=True)
def gone(waiting):
    """Take the stack down after each wait, so that the next one begins anew."""
    yield
    waiting.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK)


def terminal(workspace, columns, *words):
    return Terminal(
        [workspace.engine, "up", "--yes", "--skip-preview", "--stack", STACK, *words],
        columns=columns,
        lines=LINES,
        folder=workspace.folder / "project",
        environment=workspace.environment,
    )


@pytest.mark.long
def test_a_wide_terminal_shows_the_wait_in_the_row_of_the_capacity(waiting):
    shown = terminal(waiting, 200)
    try:
        shown.until(lambda it: FIGURES.search(it.line_with(CAPACITY)), "the wait")
        assert "(zone 1 of " in shown.line_with(CAPACITY)
        assert shown.interrupt() != 0
    finally:
        shown.close()


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.long)])
def test_a_narrow_terminal_shows_the_wait_as_lines(waiting, columns):
    """The engine's table leaves no room there, so that the pages name --non-interactive."""
    shown = terminal(waiting, columns, "--non-interactive")
    try:
        shown.until(lambda it: FIGURES.search(it.unwrapped), "the wait")
        first = next(line for line in shown.screen.display if re.search(rf"/24h {ZONE}", line))
        assert CAPACITY in first, "the figures do not stand on the first line"
        assert shown.interrupt() != 0
    finally:
        shown.close()


@pytest.mark.long
def test_a_second_terminal_of_80_columns_shows_the_wait_whole(waiting):
    """`scripts.status --watch` has its own table, whatever the width that the engine's needs."""
    up = terminal(waiting, 80)
    watch = None
    try:
        up.until(
            lambda _: waiting.get("tpu", f"v2alpha1/projects/local-project/locations/{ZONE}/queuedResources"),
            "a request",
        )
        watch = Terminal(
            [sys.executable, "-m", "scripts.status", "--stack", STACK, "--watch", "--interval", "1"],
            columns=80,
            lines=LINES,
            folder=waiting.folder / "project",
            environment=waiting.environment,
        )
        watch.until(lambda it: f"{ZONE}: WAITING" in it.unwrapped, "the wait")
        assert "WAITING" in watch.line_with(f"{STACK} ")
        assert watch.interrupt() == 130
        assert "Traceback" not in watch.text
        assert up.interrupt() != 0
    finally:
        for opened in (watch, up):
            if opened:
                opened.close()
