"""What `python -m authors.oracle --part exposure` calls a fault. No vLLM is installed here; its answers are those of 0.32.0."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from authors.oracle import exposure
from authors.oracle.environment import OracleError, OracleHome
from authors.oracle.exposure import (
    CLOSED,
    COMMIT,
    PINNED,
    REQUESTS,
    Exposure,
    ServerAnswers,
    hub_cache,
    inside_faults,
    inside_rows,
    judged,
)
from authors.oracle.render import OracleReport, as_json, as_markdown
from authors.oracle.server import OracleCores
from planning.question.vllm_args import SAFETENSORS, VllmOptions, vllm_arguments

CORES = OracleCores(server=frozenset(), clients=frozenset())
WITH_KEY = {"GET /v1/models": 200, "POST /v1/chat/completions": 200, "POST /v1/messages": 200, "WS /v1/realtime": 403}
STATUS = {one.name: one.open_status for one in REQUESTS}
OPEN = ServerAnswers(
    without=STATUS,
    with_key={**STATUS, **WITH_KEY},
    origin="*",
    preflight=200,
    preflight_with_key=200,
    picture=400,
)
BEHIND = ServerAnswers(
    without={name: 200 if name == "GET /health" else 401 for name in STATUS},
    with_key={**STATUS, **WITH_KEY},
    origin="",
    preflight=401,
    preflight_with_key=400,
    picture=400,
)
PICTURE, REFUSED = {"answer": "a picture", "requests": []}, {"answer": "ValueError: no", "requests": []}


def test_the_closed_server_gets_what_the_stacks_pass():
    passed = vllm_arguments(VllmOptions(load_format=SAFETENSORS), model_or_path=PINNED, revision=COMMIT)
    assert set(CLOSED) >= set(passed[3:])


def fetched(*paths):
    return {"answer": "a picture", "requests": list(paths)}


def media(redirect):
    by = {"data": PICTURE, "file": REFUSED}
    seen = {**by, "http": fetched("/picture.png"), "redirect": redirect}
    return {"none.invalid": {**by, "http": REFUSED, "redirect": REFUSED}, "the listener": seen, "every domain": seen}


WEIGHTS = {"auto": "bin", "safetensors": "RuntimeError: Cannot find any model weights"}
INSIDE = {
    "0": {"media": media({"answer": "ValueError: no image", "requests": ["/moved"]}), "weights": WEIGHTS},
    "1": {"media": media(fetched("/moved", "/inner")), "weights": WEIGHTS},
}


def test_the_answers_of_vllm_are_no_fault():
    assert judged(OPEN, BEHIND) == []
    assert inside_faults(INSIDE) == []


@pytest.mark.parametrize(
    ("before", "behind", "said"),
    [
        (OPEN, replace(BEHIND, without={**BEHIND.without, "POST /invocations": 200}), "/invocations with the guard and without the key must be 401"),
        (OPEN, replace(BEHIND, without={**BEHIND.without, "GET //health": 404}), "GET //health with the guard and without the key must be 401"),
        (OPEN, replace(BEHIND, without={**BEHIND.without, "GET /health": 401}), "GET /health with the guard and without the key must be 200"),
        (OPEN, replace(BEHIND, without={**BEHIND.without, "WS /v1/realtime": 101}), "WS /v1/realtime with the guard"),
        (OPEN, replace(BEHIND, with_key={**BEHIND.with_key, "GET /metrics": 401}), "GET /metrics with both must be 200, but is 401"),
        (replace(OPEN, without={**OPEN.without, "GET /metrics": 401}), BEHIND, "GET /metrics without the guard and the key must be 200, but is 401"),
        (OPEN, replace(BEHIND, origin="*"), "must be `*` and absent"),
        (OPEN, replace(BEHIND, preflight=200), "a preflight must be 200 and 401"),
        (OPEN, replace(BEHIND, preflight_with_key=200), "must be 400 for a foreign origin"),
        (OPEN, replace(BEHIND, picture=200), "a picture for a model of text must be 400, but is 200"),
    ],
)  # fmt: skip
def test_an_answer_that_is_otherwise_is_a_fault(before, behind, said):
    (fault,) = judged(before, behind)
    assert said in fault


@pytest.mark.parametrize(
    ("place", "answer", "said"),
    [
        (("0", "media", "none.invalid", "http"), fetched("/picture.png"), "http without a domain: must be refused after 0 requests"),
        (("0", "media", "none.invalid", "data"), REFUSED, "data: without a domain: must be a picture"),
        (("0", "media", "none.invalid", "file"), PICTURE, "file:: must be refused"),
        (("0", "media", "the listener", "redirect"), fetched("/moved", "/inner"), "a redirect that is not followed: must be refused after 1"),
        (("0", "weights", "safetensors"), "bin", "pickled weights must be opened by auto but not by safetensors"),
    ],
)  # fmt: skip
def test_what_vllm_fetches_or_opens_otherwise_is_a_fault(place, answer, said):
    found = deepcopy(INSIDE)
    *path, last = place
    holder = found
    for key in path:
        holder = holder[key]
    holder[last] = answer
    (fault,) = inside_faults(found)
    assert said in fault


def test_a_hub_cache_holds_the_model_at_its_commit_and_no_model_at_its_main_branch(tmp_path):
    home = OracleHome(folder=tmp_path)
    model = home.models / exposure.MODEL
    model.mkdir(parents=True)
    (model / "config.json").write_text("the model")
    home.results.mkdir()
    repository = hub_cache(home) / "hub" / f"models--{PINNED.replace('/', '--')}"
    main = (repository / "refs" / "main").read_text()
    assert (repository / "snapshots" / COMMIT / "config.json").read_text() == "the model"
    assert json.loads((repository / "snapshots" / main / "config.json").read_text()) == {"model_type": "none"}
    assert hub_cache(home).is_dir(), "a second run writes it anew"


def test_without_the_guards_file_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(exposure, "GUARD", tmp_path / "none.py")
    with pytest.raises(OracleError, match="no server can be started with the path guard"):
        exposure.check_exposure(OracleHome(folder=tmp_path), CORES, print)


def test_the_report_shows_each_request_and_the_faults():
    rows = (*exposure._rows(OPEN, BEHIND), *inside_rows(INSIDE))
    report = OracleReport(
        date="2026-11-22",
        machine="2 cores",
        load=(1.0, 2.0),
        measured=None,
        exposure=Exposure(rows=rows, faults=("exposure: something",)),
        metrics=None,
        features=None,
        elapsed_s=60.0,
    )
    text = as_markdown(report)
    assert text.startswith("### The oracle FAILED")
    assert "| `POST /invocations` | 200 | 401 | 200 |" in text
    assert "| redirect of an allowed domain | a picture, 2 requests | refused, 1 request |  |" in text
    assert text.endswith("- FAULT: exposure: something")
    assert json.loads(json.dumps(as_json(report)))["faults"] == ["exposure: something"]
