"""Every tool is its command: its schema has the command's options, the command takes each of its arguments, and its text is its structure."""

import contextlib
import importlib
import io
import json
import re

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.client.client import Client

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.agent import context
from gemma_serving.scripts.agent.permissions import CHANGES
from gemma_serving.scripts.agent.presenting import MOST_CHARACTERS, compact_json
from gemma_serving.scripts.agent.programs import ProgramResult
from gemma_serving.scripts.agent.table import TOOLS
from gemma_serving.scripts.agent.tool_server import build
from gemma_serving.scripts.agent.tools import command_of, json_default
from gemma_serving.scripts.cli import command as cli
from gemma_serving.scripts.cli.options import option_fields
from tests.scripts.agent.conftest import CANARY, STACK, called, calls_of, plan_of, typing

MODEL = "google/gemma-4-12B-it"
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
TEXTS = {
    "stack": STACK,
    "model": MODEL,
    "accelerator": "L4",
    "workload": "in=700,out=300,users=4",
    "set": ["cloudRun.maxInstances=2"],
    "since_s": "1d",
    "accelerators": ["L4", "v6e-4"],
    "revision": "main",
    "origin": "gs://a-bucket/folder",
    "plan": plan_of(STACK),
    "finding": "CST02",
    "replicas": "1:3",
    "slo": "ttft=1",
    "preset": "quick",
    "extra_body": "{}",
    "prompt": "x" * 50_000,
    "before": "results/a/one",
    "after": "results/a/two",
}
"""Values of options whose form the command checks; `1` is one of every other."""
OF_WORK = {"wait", "cancel"}
LONG = {
    "rows": [{"n": n, "texts": ["t" * 200] * 5} for n in range(60)],
    "locations": [{"accelerator": "L4", "location": f"us-{n}", "hardware": {"detail": "d" * 160}} for n in range(90)],
    "lines": [{"time": "t" * 24, "text": '"\\\u202e' * 40} for _ in range(120)],
    "changes": [{"changes": [{"before": "b" * 200}] * 60}] * 3,
}
"""Output of commands, longer than usual."""


@pytest.fixture
def server_of(bench_of, audit, codes, monkeypatch):
    """Make a server with every tool, whose commands run by a function."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")

    def make(run_program):
        monkeypatch.setattr(context, "run_program", run_program)
        made = build(bench_of(",".join(CHANGES), stage_from=[TEXTS["origin"]]), audit)

        async def person(ctx, question):
            return await typing(codes, bucket="BUCKET" in question.message)(ctx, question)

        made.person = person
        return made

    return make


@pytest.fixture
def server(server_of, commands):
    """A server with every tool, whose commands read their options as they would, and answer at length."""

    printed = {**LONG}

    async def run_program(argv, *, secrets=(), **_):
        _, room, *words = called(argv)
        command = importlib.import_module(f"gemma_serving.scripts.{room}.__main__").COMMAND
        if room == "plan" and words[:1] != ["prices"]:
            out, said = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                code = cli.run_command(command, words)
            return ProgramResult(exit_code=code, printed=out.getvalue(), said=said.getvalue().splitlines())
        cli._read(command, words)
        document = {**printed, **(commands.plan(argv) if room == "up" else {})}
        return ProgramResult(exit_code=0, printed=json.dumps(document), said=("─" * 120,) * 40, secrets=tuple(secrets))

    made = server_of(run_program)
    made.printed = printed
    return made


def used(server, work):
    async def run():
        async with Client(server, elicitation_callback=server.person) as client:
            return await work(client)

    return anyio.run(run)


def expected(one):
    """Return the schema of an option."""
    kind = JSON_TYPES[one.kind] if one.kind in JSON_TYPES and one.option.parse is None else "string"
    is_list = one.option.repeated or one.option.many
    limits = {"minimum": one.option.least, "exclusiveMinimum": one.option.above, "maximum": one.option.most}
    return {
        "type": "array" if is_list else kind,
        **({"items": {"type": kind}} if is_list else {}),
        "description": one.option.help,
        **{key: value for key, value in limits.items() if value is not None},
    }


def test_the_schema_of_a_tool_is_the_options_of_its_command(server):
    """No tool has an argument, a limit, a default or a help of its own, but `code` where a person can approve by one. None has a person's option."""

    async def listed(client):
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    found = used(server, listed)
    assert set(found) == {tool.name for tool in TOOLS} | OF_WORK
    for tool in TOOLS:
        fields = option_fields(command_of(tool.command).options)
        assert set(tool.fixed) <= set(fields)
        schema = found[tool.name].input_schema
        own = {name: one for name, one in fields.items() if not one.option.person and name not in tool.fixed}
        assert list(schema["properties"]) == [*own, *(["code"] if tool.takes_code else [])], tool.name
        for name, one in own.items():
            shown = schema["properties"][name]
            default = shown.pop("default", None)
            assert default == (None if name in tool.requires else json_default(one)), (tool.name, name)
            assert shown == expected(one), (tool.name, name)
        required = {name for name, one in own.items() if one.is_required} | set(tool.requires)
        assert set(schema.get("required", ())) == required, tool.name


def test_no_tool_has_an_option_that_writes_a_file_or_reaches_another_place():
    named = {f"{tool.name} {name}" for tool in TOOLS for name in tool.options}
    words = ("as_json", "yes", "url", "project", "watch", "follow", "utc", "out", "receipt", "write", "save")
    assert not {one for one in named if one.split()[1] in words}
    paths = {f"{tool.name} {name}" for tool in TOOLS for name, one in tool.options.items() if "Path" in str(one.kind)}
    assert paths == {"compare before", "compare after"}


def test_a_tool_with_fixed_options_says_what_it_does_with_them():
    for tool in TOOLS:
        fields = option_fields(command_of(tool.command).options)
        changed = {name for name, value in tool.fixed.items() if value not in {None, fields[name].default}}
        assert bool(tool.help) == bool(changed), tool.name


def test_the_tools_that_run_the_program_of_the_folder_say_so():
    said = {tool.name for tool in TOOLS if "runs the program of the project's folder" in tool.description}
    assert said == {"preview", "up", "stage_weights"}


def arguments_of(tool, name, schema):
    """Return the arguments of a call with one more option."""
    needed = calls_of(tool)
    if name is None:
        return needed
    kind = schema["type"]
    value = {"boolean": True, "string": "1", "array": ["1"]}.get(kind, schema.get("minimum", schema.get("maximum", 1)))
    return {**needed, name: TEXTS.get(name, value)}


def text_of(result):
    return "".join(item.text for item in result.content)


def test_the_command_takes_every_argument_of_its_tool_and_every_text_is_its_structure(server):
    async def law(client):
        wrong = []
        for tool in (await client.list_tools()).tools:
            for name, schema in {None: {}, **tool.input_schema["properties"]}.items():
                if name == "code":  # a code is of one question: test_consent.py
                    continue
                given = arguments_of(tool, name, schema)
                server.printed.update(LONG if name is None else {key: [] for key in LONG})
                if tool.name == "up":
                    await client.call_tool("preview", {key: value for key, value in given.items() if key != "plan"})
                found = await client.call_tool(tool.name, given)
                text, said = text_of(found), f"{tool.name} {compact_json(given)[:150]}"
                if re.search("Error executing tool|Traceback|pydantic|is not an option|not expected", text):
                    wrong.append(f"{said}: {text[:300]}")
                if found.is_error and tool.name not in {*OF_WORK, "plan"}:
                    wrong.append(f"{said} is refused: {text[:300]}")
                if len(text) > MOST_CHARACTERS or not text:
                    wrong.append(f"{said}: {len(text)} characters")
                if not found.is_error and json.loads(text) != found.structured_content:
                    wrong.append(f"{said}: the text is not the structured content")
        return wrong

    assert used(server, law) == []


LINES = st.lists(st.text("abcdefghij .`", min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=30)


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(code=st.sampled_from([ExitCode.FAILED, ExitCode.REFUSED, ExitCode(3)]), error=LINES, progress=LINES)
def test_every_tool_gives_each_line_of_its_commands_error_and_no_progress(server_of, commands, code, error, progress):
    sentence, works = "\n".join(error), False

    async def ends(argv, **_):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            if works:
                print(json.dumps(commands.plan(called(argv))))
            else:
                cli.report_failed_writes("gemma", lambda: cli.print_error("gemma", sentence, code, argv) or code)
        return ProgramResult(
            exit_code=0 if works else int(code), printed=out.getvalue(), said=[*map("+".__add__, progress)]
        )

    async def law(client):
        nonlocal works
        wrong = []
        for tool in (await client.list_tools()).tools:
            given = calls_of(tool)
            if works := tool.name == "up":
                await client.call_tool(
                    "preview", {key: value for key, value in given.items() if key != "plan"} | {"stack": STACK}
                )
                works = False
            if tool.name not in OF_WORK:
                found = await client.call_tool(tool.name, given)
                if not found.is_error or not text_of(found).startswith(sentence) or "+" in text_of(found):
                    wrong.append(f"{tool.name}: {text_of(found)}")
        return wrong

    assert used(server_of(ends), law) == []


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("plan", {"stak": "x"}, "plan has no argument 'stak'. It takes stack, model"),
        ("logs", {}, "logs requires stack"),
        ("logs", {"stack": STACK, "lines": 0}, "lines of logs is 0; it must be greater than or equal to 1"),
        ("plan", {"model": "gpt-5", "accelerator": "L4"}, 'The model "gpt-5" is not in the catalog'),
        ("plan", {"finding": "XYZ99"}, "XYZ99 is not a finding."),
        ("destroy_vllm", {"confirm": True}, "Unknown tool: destroy_vllm"),
        ("plan", {"stack": [STACK]}, "it must be a valid string"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_what_is_allowed(server, tool, arguments, words):
    found = used(server, lambda client: client.call_tool(tool, arguments))
    assert found.is_error
    assert words in text_of(found)
    assert not re.search(r"pydantic|validation error|Error executing|type=|^plan: ", text_of(found))


def test_a_bug_is_named_without_its_text(server, monkeypatch):
    async def breaks(*_, **__):
        raise KeyError(CANARY)

    monkeypatch.setattr(context, "run_program", breaks)
    found = used(server, lambda client: client.call_tool("doctor", {"stack": STACK}))
    assert found.is_error
    assert text_of(found) == "Error executing tool doctor"
