"""`gemma plan --from FILE` and `gemma plan -- LINE`: the plan of `--set`, the words without a setting by name, and no secret."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.serving_document import ServingDocument
from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.data.images import IMAGES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.server_flags import flag_table, parse_arguments
from gemma_serving.planning.settings.vllm_args import REVISION, SHUTDOWN_FLAG, TOKENIZER_REVISION, vllm_arguments
from gemma_serving.scripts.plan.__main__ import main
from gemma_serving.scripts.plan.pasted_question import Pasted, pasted
from gemma_serving.scripts.plan.plan_options import QuestionOptions
from gemma_serving.scripts.plan.question import question_from
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.server_command import COMMAND, PORT, PlannedServer, with_served_name
from tests.laws import examples

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "fixtures" / "pasted"
STACKS = {path.name.split(".")[1]: path for path in shipped_files(ROOT)}
PROJECT = "my-project"
MODEL = "google/gemma-4-12B-it"
KEY = "k3y-of-the-server"
TOKEN = "hf_" + "aB3" * 8


@pytest.fixture
def planned(monkeypatch, capsys):
    """Run `gemma plan`; returns exit code, stdout and stderr."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)

    def run(*arguments):
        capsys.readouterr()
        code = main(list(map(str, arguments)))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


# The law: a stack's own words say the stack.


def _forms(name, planned):
    """Return the texts that print a stack's words, with the options that the text lacks."""
    own = from_file(STACKS[name], project=PROJECT)
    deployed = plan(to_question(own, ROOT))
    found = {}
    for option in ("--gcloud", "--gke"):
        code, out, _ = planned("--stack", name, option)
        if code == 0:
            found[option] = (out, {})
    server = PlannedServer(settings=own, plan=deployed, names=Names(project=PROJECT, stack=name))
    document = ServingDocument(
        image=f"{own.image.repository}@{own.image.digest}",
        command=COMMAND,
        arguments=server.arguments,
        environment=server.environment,
        secret_environment={"HF_TOKEN": "projects/p/secrets/s/versions/1"},
        port=PORT,
        weights=None,
    )
    built = next(
        (key for key, one in IMAGES.items() if one.build_context and one.build_context == own.image.build_context), None
    )
    found["document"] = (document.text(), {"accelerator": deployed.accelerator, "image": built})
    return own, deployed, found


def _flags(words):
    """Return the flags of a server, in any order, without those that name its weights."""
    read = parse_arguments(words[1:], flag_table(None))
    return sorted(
        (one.name, one.is_off, one.value)
        for one in read
        if one.name not in {REVISION, TOKENIZER_REVISION, SHUTDOWN_FLAG}
    )


@pytest.mark.parametrize("name", STACKS)
def test_the_own_words_of_a_stack_are_the_stack(name, planned, tmp_path):
    own, deployed, forms = _forms(name, planned)
    served = with_served_name(own, deployed.vllm)
    assert len(forms) >= (3 if own.cloud_run else 1)
    for form, (text, rest) in forms.items():
        path = tmp_path / f"pasted-{form.strip('-')}"
        path.write_text(text)
        question = QuestionOptions(**rest)
        found = pasted(path, (), question)
        again = plan(question_from(found.asked(question)))
        assert (again.model, again.accelerator, again.quantization) == (
            deployed.model,
            deployed.accelerator,
            deployed.quantization,
        )
        memory = [replace_struct(one.memory, load_peak_host_gib=0) for one in (again, deployed)]
        assert (again.verdict, memory[0]) == (deployed.verdict, memory[1]), form
        here = replace(again.vllm, served_model_name=again.vllm.served_model_name or own.model)
        words = [vllm_arguments(one, model_or_path="m", port=PORT) for one in (here, served)]
        assert _flags(words[0]) == _flags(words[1]), form
        assert not [one for one in found.words["left_out"] if one.startswith("-")], form


# Twenty public files.

UNREADABLE = "starts no vLLM server that can be read"
PUBLIC: Mapping[str, tuple[Sequence[str], str]] = {
    "codelab-31b.md": ((), "google/gemma-4-31B-it as fp8 on RTX PRO 6000 (cloud-run): fits"),
    "compose-26b.yaml": ((), "cheapest that meets the limits: RTX PRO 6000"),
    "compose-e4b.yaml": ((), "cheapest that meets the limits: L4"),
    "docker-eagle3-26b.sh": (("--accelerator", "H100"), "google/gemma-4-26B-A4B-it as fp8 on H100 (gce): fits"),
    "dp2-26b.sh": (("--accelerator", "L4x2"), "google/gemma-4-26B-A4B-it as bf16 on L4x2 (gce): out of memory"),
    "e4b-base.sh": (("--accelerator", "L4"), "google/gemma-4-E4B as bf16 on L4 (cloud-run): fits"),
    "gemma3.Dockerfile": ((), 'The model "google/gemma-3-4b-it" is not in the catalog.'),
    "gke-base.yaml": ((), "has its model in a variable that it does not set (--model=/gcs/$(MODEL_ID))"),
    "gke-ironwood-31b.yaml": ((), "google/gemma-4-31B-it as bf16 on tpu7x-4 (tpu-vm): fits"),
    "gke-l4x4-31b.yaml": (("--accelerator", "L4x4"), "google/gemma-4-31B-it as bf16 on L4x4 (gce): blocked"),
    "gke-patch.yaml": ((), UNREADABLE),
    "gke-rtx-31b.yaml": ((), "google/gemma-4-31B-it as bf16 on RTX PRO 6000 (cloud-run): fits"),
    "gke-v6e-26b.yaml": (("--accelerator", "v6e-4"), "google/gemma-4-26B-A4B-it as bf16 on v6e-4 (tpu-vm): blocked"),
    "h100-31b-base.sh": (("--accelerator", "L4x4"), "google/gemma-4-31B as fp8 on L4x4 (gce): "),
    "handler.Dockerfile": ((), UNREADABLE),
    "issue-38926.txt": (("--accelerator", "v6e-4"), "google/gemma-4-31B-it as bf16 on v6e-4 (tpu-vm): blocked"),
    "lambda-12b.sh": (("--accelerator", "L4"), "google/gemma-4-12B-it as bf16 on L4 (cloud-run): out of memory"),
    "llmd-v6e-31b.yaml": (("--accelerator", "v6e-8"), "google/gemma-4-31B-it as bf16 on v6e-8 (tpu-vm): "),
    "llmd-values.yaml": ((), 'The model "Qwen/Qwen3-0.6B" is not in the catalog.'),
    "openshift-e4b.yaml": ((), "cheapest that meets the limits: L4"),
    "podman-alias.md": ((), UNREADABLE),
    "run-31b.md": ((), "google/gemma-4-31B-it as fp8 on RTX PRO 6000 (cloud-run): fits"),
    "run-array-31b.sh": ((), "google/gemma-4-31B-it as fp8 on RTX PRO 6000 (cloud-run): fits"),
    "run-array-jq.sh": ((), "has its model in a variable that it does not set ($MODEL_NAME)"),
    "run-e4b.md": ((), "google/gemma-4-E4B-it as fp8 on RTX PRO 6000 (cloud-run): blocked"),
}
"""Options, and what is printed: the verdict, the cheapest card, or the sentence of the refusal."""


def test_every_public_file_has_its_row():
    assert {path.name for path in FILES.iterdir()} == {*PUBLIC}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_file_is_planned_or_refused_in_one_sentence(name, planned):
    options, said = PUBLIC[name]
    code, out, error = planned("--from", FILES / name, *options)
    assert said in " ".join((out + error).split())
    if "The same as settings:" not in out:
        assert (code, out, error.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_printed_settings_are_the_same_plan(name, planned):
    options, _ = PUBLIC[name]
    code, out, _ = planned("--from", FILES / name, *options)
    before, found, after = out.partition("\nThe same as settings:\n")
    if not found:
        return
    command = re.match(r"  gemma plan (.*?[^\\])\n", after, re.DOTALL)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", ""))
    again, same, _ = planned(*words)
    assert again == code
    if "--compare" in words:  # the table of all cards, in columns of another width
        assert {line.split("│")[0].strip() for line in before.splitlines()[3:]} <= {
            line.split("│")[0].strip() for line in same.splitlines()
        }
    else:
        assert same == before


# One server in every form.

FLAGS = {
    "--max-model-len": ("8192", "131072"),
    "--gpu-memory-utilization": ("0.9",),
    "--kv-cache-dtype": ("fp8",),
    "--max-num-seqs": ("16",),
    "--limit-mm-per-prompt": ('{"image":0,"audio":0}',),
    "--enable-prefix-caching": (None,),
    "--no-async-scheduling": (None,),
    "--speculative-config": ('{"method":"ngram","num_speculative_tokens":3}',),
    "--mm-processor-kwargs": ('{"max_soft_tokens": 560}',),
    "--served-model-name": ("chat",),
    "--seed": ("7",),
    "--not-a-flag": ("x",),
    "--api-key": (KEY,),
    "--host": ("0.0.0.0",),
    "--revision": ("main",),
}


FLAGS_OF_JSON = {flag for flag, values in FLAGS.items() if (values[0] or "").startswith("{")}


@cache
def _of_line(words: tuple[str, ...]) -> Pasted:
    return pasted(None, ["vllm", "serve", *words], QuestionOptions())


def _dumped(container):
    pod = {
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "sidecar", "image": "busybox", "args": ["sleep"]}, container]}
            }
        }
    }
    return yaml.safe_dump_all([{"kind": "Service", "spec": {"ports": [{"port": 80}]}}, {"kind": "Deployment", **pod}])


WRITERS = {
    "script": lambda words: (
        "#!/bin/sh\nset -e\ncd x && exec vllm serve " + " \\\n  ".join(map(shlex.quote, words)) + " > log 2>&1 &\n"
    ),
    "log": lambda words: f"nohup vllm serve {shlex.join(words)} 2>&1 | tee log\n",
    "variables": lambda words: (
        "A=" + shlex.quote(words[0]) + "\nvllm serve ${A:-other} " + shlex.join(words[1:]) + "  # served\n"
    ),
    "array": lambda words: "ARGS=(\n" + "\n".join(map(shlex.quote, words)) + '\n)\nvllm serve "${ARGS[@]}"\n',
    "module": lambda words: "python -m vllm.entrypoints.openai.api_server --model " + shlex.join(words) + "\n",
    "docker": lambda words: f"docker run --rm -it --gpus all -e A=b -p 1:2 vllm/vllm-openai {shlex.join(words)}\n",
    "gcloud": lambda words: (
        "gcloud run deploy s --gpu 1 --command=vllm --args=" + shlex.quote("^|^serve|" + "|".join(words)) + "\n"
    ),
    "gcloud-rest": lambda words: "gcloud run deploy s --image vllm/vllm-openai -- " + shlex.join(words) + "\n",
    "gcloud-blank": lambda words: (
        "gcloud run deploy s --image vllm/vllm-openai --args "
        + shlex.quote(",".join(["--model", *words]))
        + " --cpu 8\n"
    ),
    "inner": lambda words: "bash -c " + shlex.quote("pip install x && exec vllm serve " + shlex.join(words)) + "\n",
    "Dockerfile": lambda words: (
        f'FROM vllm/vllm-openai\nRUN true\nENTRYPOINT ["vllm", "serve"]\nCMD {json.dumps(words)}\n'
    ),
    "Dockerfile-shell": lambda words: f"FROM x\nENV M={words[0]}\nCMD vllm serve $M {shlex.join(words[1:])}\n",
    "pod": lambda words: _dumped({"image": "i", "command": ["vllm", "serve"], "args": words}),
    "pod-shell": lambda words: _dumped(
        {"image": "i", "command": ["sh", "-c"], "args": [f"vllm serve {shlex.join(words)}"]}
    ),
    "pod-image": lambda words: _dumped({"image": "vllm/vllm-openai", "args": words}),
    "pod-env": lambda words: _dumped(
        {"image": "vllm/vllm-openai", "args": ["$(M)", *words[1:]], "env": [{"name": "M", "value": words[0]}]}
    ),
    "compose": lambda words: yaml.safe_dump(
        {"services": {"a": {"image": "vllm/vllm-openai", "command": shlex.join(words)}}}
    ),
    "service": lambda words: json.dumps(
        {"template": {"containers": [{"image": "i", "command": ["vllm"], "args": ["serve", *words]}]}}
    ),
}
"""The form of a text by its name, from the words after `vllm serve`."""


@st.composite
def servers(draw):
    """Draw the words after `vllm serve`."""
    flags = draw(st.lists(st.sampled_from([*FLAGS]), unique=True, max_size=6))
    words = [MODEL]
    for flag in flags:
        value = draw(st.sampled_from(FLAGS[flag]))
        is_attached = value is not None and draw(st.booleans())
        words += [f"{flag}={value}"] if is_attached else [flag, *([] if value is None else [value])]
    return words


@settings(max_examples=examples(test=150, part=400, night=2_000))
@given(words=servers(), form=st.sampled_from([*WRITERS]))
def test_a_server_is_the_same_in_every_form(tmp_path_factory, words, form):
    if form == "gcloud-blank":
        words = [word for word in words if "," not in word and "{" not in word and word not in FLAGS_OF_JSON]
    path = tmp_path_factory.mktemp("form") / (f"f.{form}" if form == "Dockerfile" else "f")
    path.write_text(WRITERS[form](words))
    found = pasted(path, (), QuestionOptions())
    line = _of_line(tuple(words))
    assert found.words == {**line.words, "left_out": found.words["left_out"]}
    left_out = [one for one in found.words["left_out"] if one not in {"i", "x", "vllm/vllm-openai"}]
    pairs = tuple(pair for pair in found.pairs if pair != "cloudRun.cpu=8")
    assert (found.model, pairs, left_out) == (line.model, line.pairs, line.words["left_out"])


MARKS = [
    "",
    "\n",
    "'",
    '"',
    "[",
    "{",
    "- ",
    "$(",
    "${X",
    "`",
    "\\",
    "\t",
    "--",
    "--gpu",
    "--args=",
    "x2",
    "&a ",
    "*a",
    "<<: ",
    "FROM ",
    "CMD ",
]
"""What damages a file."""


# Secrets.

SECRETS = {
    "line.sh": f"export HF_TOKEN={TOKEN}\nvllm serve {MODEL} --api-key {KEY} --max-model-len 8192\n",
    "docker.sh": f"docker run -e HF_TOKEN={TOKEN} vllm/vllm-openai --model {MODEL} --api-key={KEY}\n",
    "run.sh": f"gcloud run deploy s --set-env-vars HF_TOKEN={TOKEN} --command vllm --args=serve,{MODEL},--api-key,{KEY}\n",
    "Dockerfile": f'FROM vllm/vllm-openai\nENV HF_TOKEN={TOKEN}\nCMD ["{MODEL}", "--api-key", "{KEY}"]\n',
    "pod.yaml": _dumped(
        {"image": "vllm/v", "args": [MODEL, f"--api-key={KEY}"], "env": [{"name": "HF_TOKEN", "value": TOKEN}]}
    ),
    "stray.sh": f"HF_TOKEN={TOKEN} vllm serve {MODEL} {TOKEN} --api-key {KEY} --seed {TOKEN}\n",
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "options", [(), ("--json",), ("--accelerator", "L4"), ("--accelerator", "L4", "--json", "--explain")]
)
def test_no_secret_is_printed(name, options, planned, tmp_path):
    path = tmp_path / name
    path.write_text(SECRETS[name])
    _, out, error = planned("--from", path, *options)
    assert "--api-key" in out
    assert "HF_TOKEN" in out
    assert not [one for one in (KEY, TOKEN) if one in out + error]
    if not options and name == "stray.sh":
        assert "(gemma save_token stores them): a word, --api-key, --seed, HF_TOKEN\n" in out


def test_no_secret_of_a_line_is_printed(planned):
    _, out, error = planned("--accelerator", "L4", "--", "vllm", "serve", MODEL, "--api-key", KEY, "--foo", TOKEN)
    assert not [one for one in (KEY, TOKEN) if one in out + error]
    assert "Secrets, neither shown nor kept (gemma save_token stores them): --api-key, --foo" in out


# Nothing is run, and what cannot be read is one sentence.

REFUSED = {
    "missing": (None, "No such file or directory"),
    "folder": ("/", "not a regular file"),
    "binary": (b"\xff\xfe\x00vllm serve", "it is not text"),
    "large": (b"#" * (2**20 + 1), "at most 1,048,576 are allowed"),
    "empty": (b"", UNREADABLE),
    "broken.yaml": (
        b"kind: Pod\n  spec: [",
        "it is not YAML (line 2). Of a template, pass the result of helm template or kubectl kustomize",
    ),
    "chart.yaml": (b"kind: Pod\nspec:\n  {{- if .Values.x }}\n", "it is not YAML (line 3)"),
    "broken.json": (b'{"args": ', "Expecting value"),
    "deep.json": (b"[" * 200_000, "recursion"),
    "bomb.yaml": (
        b"kind: a\na: &a [x, x]\n"
        + b"".join(f"b{i}: &b{i} [{f'*b{i - 1}, ' * 9 if i else '*a, ' * 9}]\n".encode() for i in range(40)),
        UNREADABLE,
    ),
    "other.yaml": (b"kind: Pod\nspec: {containers: [{image: nginx, args: [serve]}]}\n", UNREADABLE),
    "model.sh": (b"vllm serve --max-model-len 8192\n", "names no model"),
    "unset.sh": (b"vllm serve $MODEL\n", "has its model in a variable that it does not set ($MODEL)"),
    "folder.sh": (
        b"vllm serve /models/mine --served-model-name mine\n",
        "serves the folder /models/mine, whose model is not known",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_sentence(name, planned, tmp_path):
    content, said = REFUSED[name]
    path = Path(content) if isinstance(content, str) else tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    code, out, error = planned("--from", path)
    assert (code, out) == (2, "")
    assert said in error
    assert re.fullmatch(r"plan: .*\.\n", error)


def test_nothing_of_a_file_is_run(planned, tmp_path, monkeypatch):
    def refused(*_arguments, **_options):
        raise AssertionError

    for owner, name in ((os, "system"), (subprocess, "Popen"), (socket.socket, "connect"), (os, "posix_spawn")):
        monkeypatch.setattr(owner, name, refused)
    path, mark = tmp_path / "f.sh", tmp_path / "mark"
    path.write_text(
        f"X=$(touch {mark}; echo 8192)\n`touch {mark}`\nvllm serve {MODEL} --max-model-len $X --port ${{P:-8000}}\n"
    )
    code, out, _ = planned("--from", path, "--accelerator", "H100")
    assert code == 0
    assert "Left out: --max-model-len $X" in out
    assert not mark.exists()


CONFLICTS = {
    "STACK": ["--stack", "l4-qat"],
    "--model": ["--model", MODEL],
    "--solve": ["--solve", "--workload", "in=1,out=1,users=1"],
    "--gke": ["--gke"],
    "--gcloud": ["--gcloud"],
    "--live": ["--live"],
    "--finding": ["--finding", "FIT01"],
}


@pytest.mark.parametrize("option", CONFLICTS)
def test_an_option_that_names_another_deployment_is_refused(option, planned):
    for pasted_words, name in ((["--from", "x"], "--from"), (["--", "vllm", "serve", MODEL], "A line after --")):
        code, _, error = planned(*CONFLICTS[option], *pasted_words)
        assert (code, error) == (2, f"plan: {name} and {option} cannot be combined.\n")


def test_options_of_the_command_count_before_the_words(planned):
    line = ["--", "vllm", "serve", MODEL, "--max-model-len", "131072"]
    code, out, _ = planned(
        "--accelerator", "H100", "--vllm", "0.31.0", "--set", "vllm.maxModelLen=4096", "--json", *line
    )
    found = json.loads(out)
    assert (code, found["accelerator"], found["vllm_version"]) == (0, "H100", "0.31.0")
    assert found["pasted"]["pairs"] == ["vllm.maxModelLen=131072"]
    assert "4,096 tokens" in planned("--accelerator", "H100", "--set", "vllm.maxModelLen=4096", *line)[1]


def test_a_line_belongs_to_the_plan_alone(planned):
    assert planned("prices", "--dry-run", "--", "vllm", "serve", MODEL)[0] == 2
    code, _, error = planned("--image", "none-such", "--accelerator", "L4", "--", "vllm", "serve", MODEL)
    assert (code, error.startswith('plan: --image is "none-such". Allowed: ')) == (2, True)


DESCRIBED = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  labels: {cloud.googleapis.com/location: us-central1}
  name: chat
spec:
  template:
    metadata:
      annotations: {autoscaling.knative.dev/maxScale: '1'}
    spec:
      containerConcurrency: 16
      containers:
      - args: [serve, google/gemma-4-12B-it, --max-model-len=8192, --quantization=fp8]
        command: [vllm]
        env:
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {key: latest, name: hf}}}
        image: vllm/vllm-openai:v0.29.0
        resources:
          limits: {cpu: 8000m, memory: 32Gi, nvidia.com/gpu: '1'}
      nodeSelector: {run.googleapis.com/accelerator: nvidia-l4}
"""
"""A service as `gcloud run services describe --format=yaml` prints it."""


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_described_service_has_its_card_its_host_and_its_release(form, tmp_path):
    path = tmp_path / "service"
    path.write_text(DESCRIBED if form == "yaml" else json.dumps(yaml.safe_load(DESCRIBED)))
    found = pasted(path, (), QuestionOptions())
    assert (found.accelerator, found.vllm, found.words["secrets"]) == ("L4", "0.29.0", ["HF_TOKEN"])
    assert found.pairs == (
        "cloudRun.region=us-central1",
        "cloudRun.concurrency=16",
        "cloudRun.maxInstances=1",
        "cloudRun.cpu=8",
        "cloudRun.memory=32Gi",
        "vllm.maxModelLen=8192",
        "vllm.quantization=fp8",
    )
    asked = question_from(found.asked(QuestionOptions()))
    assert (asked.cloud_run.cpu, asked.cloud_run.memory_mib, asked.image_version) == (8, 32_768, "0.29.0")


CARDS = {
    "cloud.google.com/gke-accelerator: nvidia-h100-80gb": ("nvidia.com/gpu", "1", "H100"),
    "cloud.google.com/gke-accelerator: nvidia-rtx-pro-6000": ("nvidia.com/gpu", "1", "RTX PRO 6000"),
    "cloud.google.com/gke-accelerator: nvidia-l4": ("nvidia.com/gpu", "4", "L4x4"),
    "cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice\n      cloud.google.com/gke-tpu-topology: 2x4": (
        "google.com/tpu",
        "8",
        "v6e-8",
    ),
    "cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice": ("google.com/tpu", "4", "v5e-4"),
    "cloud.google.com/gke-tpu-accelerator: tpu7x\n      cloud.google.com/gke-tpu-topology: 2x2x1": (
        "google.com/tpu",
        "4",
        "tpu7x-4",
    ),
}
"""Labels of a node selector, with the resource, its count and the accelerator."""


@pytest.mark.parametrize("labels", CARDS)
def test_a_node_selector_names_the_card(labels, tmp_path):
    resource, count, card = CARDS[labels]
    path = tmp_path / "pod.yaml"
    container = f"{{image: vllm/vllm-openai, args: [{MODEL}], resources: {{limits: {{{resource}: {count}}}}}}}"
    path.write_text(f"kind: Pod\nspec:\n  nodeSelector:\n      {labels}\n  containers: [{container}]\n")
    assert pasted(path, (), QuestionOptions()).accelerator == card


@settings(max_examples=examples(test=100, part=1_000, night=20_000))
@given(
    name=st.sampled_from(sorted(PUBLIC)),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60)), max_size=4),
    mark=st.sampled_from(MARKS),
)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(tmp_path_factory, name, cuts, mark):
    text = (FILES / name).read_text()
    for place, length in cuts:
        at = int(place * len(text))
        text = text[:at] + mark + text[at + length :]
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_text(text)
    try:
        pasted(path, (), QuestionOptions())
    except PlanningError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("form", ["line", "file"])
def test_a_pasted_plan_loads_nothing_but_the_reader_of_its_form(form, tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text(_dumped({"image": "vllm/vllm-openai", "args": [MODEL, "--max-model-len", "8192"]}))
    words = ["--from", str(path)] if form == "file" else ["--", "vllm", "serve", MODEL, "--max-model-len", "8192"]
    heavy = ("pydantic", "rich", "yaml", "pulumi", "requests", "httpx", "gemma_serving.stacks.loading")
    probe = (
        "import runpy, sys\n"
        "try: runpy.run_module('scripts.plan', run_name='__main__')\n"
        f"except SystemExit as end: print(end.code, sorted({{*{heavy}}} & {{*sys.modules}}), file=sys.stderr)"
    )
    command = [sys.executable, "-c", probe, "--accelerator", "H100", "--json", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == f"0 {['yaml'] if form == 'file' else []}"
