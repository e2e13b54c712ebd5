"""The pictures of terminals have the figures of the stack and the words of the planner. `make pictures` refuses what shows the machine."""

import json
import re

from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.planner import plan
from gemma_serving.scripts.gemma.__main__ import main
from gemma_serving.stacks.loading import from_file, read_yaml
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.program import run
from tests.pictures import FOLDER, REFUSED, ROOT, STACK, broken_words, words_of


def test_the_figures_of_the_pictures_are_those_of_the_stack(subtests, declare, monkeypatch):
    """`make pictures` writes them again."""
    path = settings_file(STACK, ROOT)
    settings = from_file(path, project="my-project")
    planned = plan(to_question(settings))
    values = {"gcp:project": "my-project", **read_yaml(path.read_text())["config"]}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
    resources = len(declare(run)[0].declared)
    run_h, price = settings.tpu.max_run_duration_s / 3600, planned.cost.usd_per_hour
    figures = {
        r"Resources: (\d+) to create": f"{resources}",
        r"\$([\d.]+)/h": f"{price:.2f}",
        r"at most \$([\d.]+) for one run": f"{price * run_h:.2f}",
        r"one run of (\S+) h": f"{run_h:g}",
        r"ready │ .* │ +([\d.]+) │": f"{price:.2f}",
        r"maxAge (\d+) h": f"{settings.max_age_s / 3600:g}",
    }
    of_another_stack = "plan-refused.svg"
    words = "\n".join(words_of(path.read_text()) for path in FOLDER.iterdir() if path.name != of_another_stack)
    for pattern, figure in figures.items():
        with subtests.test(pattern):
            assert set(re.findall(pattern, words)) == {figure}


def test_the_refusal_is_the_whole_plan_that_the_planner_prints(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "400")
    assert main(REFUSED) == 2
    shown = "\n".join(words_of((FOLDER / "plan-refused.svg").read_text()).splitlines()[2:])
    assert shown.split() == capsys.readouterr().out.split()


def test_no_word_of_a_picture_is_broken(subtests):
    for path in FOLDER.iterdir():
        with subtests.test(path.name):
            assert broken_words(path.read_text()) == []
    served = (FOLDER / "served.svg").read_text()
    assert broken_words(served.replace(">Hello from", ">Hello fro")) == ["fro"]
