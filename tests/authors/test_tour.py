"""The tour of docs/tasks.md: every command line of the page runs in it, or it states why not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from authors import tour
from authors.tasks_page import SKIPPED, TAKES_LONG, Task, problem_of, tasks_of, walk
from contracts.exit_codes import ExitCode
from scripts.cli.command import run_command

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text()
TASKS = tasks_of(PAGE)
LINES = [line for task in TASKS for line in task.lines]


def test_every_block_of_the_page_is_read():
    assert len(re.findall(r"^```", PAGE, flags=re.MULTILINE)) == 2 * len(
        re.findall(r"^```sh\n", PAGE, flags=re.MULTILINE)
    )
    assert set(LINES) == {
        line.strip()
        for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
        for line in block.splitlines()
        if line.strip()
    }
    assert len(LINES) > 25


def test_the_tour_runs_every_line_of_the_page_or_says_why_not():
    assert [problem for line in LINES if (problem := problem_of(line))] == []


@pytest.mark.parametrize(
    "line",
    [
        "docker run --rm image",
        "python -m scripts.plan --stack YOUR_STACK",
        "python -m scripts.stage_model --stack l4-qat --from ./folder",
        "pulumi config set gcp:project PROJECT",
        "python -m localcloud serve",
    ],
)
def test_a_line_that_the_tour_cannot_run_is_found(line):
    assert problem_of(line)


def test_no_reason_to_skip_is_left_over():
    assert [part for part in (*SKIPPED, TAKES_LONG) if not any(part in line for line in LINES)] == []


def test_each_line_runs_for_one_of_the_two_stacks_unless_it_is_named_as_skipped():
    walks = [command for stack in tour.STACKS for command in walk(TASKS, stack)]
    runs = {command.line for command in walks if not command.reason}
    skipped = {command.line for command in walks if command.reason}
    assert {line for line in LINES if line not in runs} == {
        line for line in skipped - runs if any(part in line for part in SKIPPED)
    }


def test_the_walk_for_cloud_run_names_no_tpu_stack_and_stages_before_the_first_check():
    lines = [command.line for command in walk(TASKS, "l4-qat")]
    assert not [line for line in lines if "tpu-v6e1" in line]
    assert lines.index("python -m scripts.stage_model --stack l4-qat") < lines.index(
        "python -m scripts.doctor --stack l4-qat"
    )
    assert lines.count("python -m scripts.stage_model --stack l4-qat") == 1


def test_both_walks_end_with_a_teardown():
    for stack in tour.STACKS:
        assert walk(TASKS, stack)[-1].line == f"python -m scripts.teardown --stack {stack}"


def test_what_asks_is_answered_and_what_stays_open_is_ended():
    (commands,) = [walk([Task(heading="x", lines=tuple(LINES))], "tpu-v6e1")]
    answered = {command.line for command in commands if command.answered != command.line}
    assert {
        "pulumi up",
        "python -m scripts.capacity --write tpu-v6e1",
        "python -m scripts.teardown --stack tpu-v6e1",
    } <= answered
    assert "pulumi preview" not in answered
    assert [command.line for command in commands if command.ending == "stays open"] == [
        "python -m scripts.connect --stack tpu-v6e1",
        "python -m scripts.status --stack tpu-v6e1 --watch",
        "python -m scripts.logs --stack tpu-v6e1 --follow",
    ]


@pytest.mark.parametrize(("words", "says"), [(["--stack", "x", "--yes"], "does not know stack x"), ([], "Pass --yes")])
def test_what_the_tour_cannot_do_is_refused_in_a_sentence(words, says, capsys):
    assert run_command(tour.COMMAND, words) == ExitCode.REFUSED
    assert says in capsys.readouterr().err


def test_a_command_that_stays_open_is_ended_as_by_ctrl_c(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tour, "SHOWN_S", 0.0)
    program = "import time\ntry: print('open', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('closed')"
    assert tour._shown([sys.executable, "-c", program], tmp_path) == 0
    assert {"open", "closed"} <= set(capsys.readouterr().out.splitlines())
    monkeypatch.setattr(tour, "SHOWN_S", 60.0)
    assert tour._shown([sys.executable, "-c", "print('no'); raise SystemExit(3)"], tmp_path) == 3


def test_make_has_the_tour():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^  tour +Walk through", listed, flags=re.MULTILINE)


def page_with(folder, line):
    (folder / "project").mkdir()
    (folder / "tasks.md").write_text(f"# Tasks\n\n## Try it\n\n```sh\n{line}\n```\n")
    return folder


@pytest.mark.parametrize(("code", "ending"), [(0, ExitCode.DONE), (3, ExitCode.FAILED)])
def test_a_command_that_fails_fails_the_tour_and_is_named(tmp_path, capfd, code, ending):
    line = f"{sys.executable} -c 'raise SystemExit({code})'"
    folder = page_with(tmp_path, line)
    assert tour._inside(folder, tour.TourOptions(stack="tpu-v6e1", yes=True)) == ending
    said = capfd.readouterr().out
    assert "## Try it" in said
    assert f"$ {line}" in said
    assert (f"failed: {line}" in said) == (code != 0)


@pytest.mark.parametrize(
    ("keys", "counted"), [([""], "ran 1 commands"), (["s"], "ran 0 commands"), (["q"], "stops here")]
)
def test_enter_runs_s_skips_and_q_stops(tmp_path, capfd, monkeypatch, keys, counted):
    monkeypatch.setattr("builtins.input", lambda _: keys.pop(0))
    folder = page_with(tmp_path, f"{sys.executable} -c pass")
    assert tour._inside(folder, tour.TourOptions(stack="tpu-v6e1")) == ExitCode.DONE
    assert counted in capfd.readouterr().out


def test_an_answer_of_yes_there_are_some_is_no_failure():
    commands = {command.line: command for command in walk(TASKS, "tpu-v6e1")}
    assert commands["python -m scripts.teardown --all --over-limit --dry-run"].is_success(1)
    assert not commands["python -m scripts.smoke --stack tpu-v6e1"].is_success(1)
