"""The example configurations of clients: files that their clients read, for a server that starts with these words."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "clients"
PAGE = (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")
KEYS = {
    "claude-code/.mcp.json": {"type", "command", "args", "env", "timeout"},
    "codex/config.toml": {"command", "args", "env", "startup_timeout_sec", "tool_timeout_sec"},
    "antigravity-cli/mcp_config.json": {"command", "args", "env"},
    "gemini-cli/settings.json": {"command", "args", "cwd", "env", "timeout", "trust"},
    "cursor/mcp.json": {"command", "args", "env"},
}
"""Keys that the sources of docs/agent.md name. A client leaves out what it does not know, without a word."""


def servers(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    return tomllib.loads(text)["mcp_servers"] if name.endswith(".toml") else json.loads(text)["mcpServers"]


def test_each_example_is_read_and_starts_this_server(subtests):
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert files == set(KEYS)
    for name, keys in KEYS.items():
        with subtests.test(name):
            ((server, found),) = servers(name).items()
            assert (server, set(found)) == ("gemma-serving", keys)
            project = found["command"].removesuffix("/.venv/bin/gemma")
            assert project in PAGE
            assert found["args"] == ["agent"]
            assert found.get("cwd", project) == project
            assert f"](clients/{name})" in PAGE


def test_a_call_may_last_half_an_hour_in_each_client_that_has_a_limit():
    assert servers("claude-code/.mcp.json")["gemma-serving"]["timeout"] == 1_800_000
    assert servers("gemini-cli/settings.json")["gemma-serving"]["timeout"] == 1_800_000
    codex = servers("codex/config.toml")["gemma-serving"]
    assert (codex["tool_timeout_sec"], codex["startup_timeout_sec"]) == (1800, 30)
    assert "the examples have 30 minutes" in PAGE


def test_the_skill_that_the_page_copies_has_what_clients_look_for():
    head = (ROOT / "scripts" / "agent" / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
    assert re.search(r"^name: gemma-serving$", head, re.MULTILINE)
    assert re.search(r"^description: .{50,1024}$", head, re.MULTILINE)
    assert set(re.findall(r"(\.\w+)/skills/gemma-serving/SKILL.md", PAGE)) == {
        ".claude",
        ".agents",
        ".gemini",
        ".cursor",
    }
