"""Pages for a model to read before it acts, as MCP resources."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import MCPServer

from gemma_serving.contracts.installation import ROOT
from gemma_serving.planning.data.tables import Table

PAGES: Final = {
    "runbook": "docs/recovery.md",
    "tasks": "docs/tasks.md",
    "status": "docs/status.md",
    "settings": "docs/reference/settings.md",
    "agent": "docs/agent.md",
    "skill": "scripts/agent/SKILL.md",
}


TEXTS: Final[Mapping[str, str]] = Table(
    lambda: tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
)
"""Longer texts of tools."""


def add_pages(server: MCPServer[Any]) -> None:
    """Register the pages."""
    for name, file in PAGES.items():
        _add_page(server, name, file)


def _add_page(server: MCPServer[Any], name: str, file: str) -> None:
    @server.resource(f"gemma://pages/{name}", name=name, mime_type="text/markdown", description=file)
    def page() -> str:
        return (ROOT / file).read_text(encoding="utf-8")
