"""Pages for a model to read before it acts, as MCP resources."""

from typing import Any, Final

from mcp.server.mcpserver import MCPServer

from gemma_serving.contracts.installation import ROOT

PAGES: Final = {
    "runbook": "docs/recovery.md",
    "tasks": "docs/tasks.md",
    "status": "docs/status.md",
    "settings": "docs/reference/settings.md",
    "agent": "docs/agent.md",
    "skill": "scripts/agent/SKILL.md",
}


def add_pages(server: MCPServer[Any]) -> None:
    """Register the pages."""
    for name, file in PAGES.items():
        _add_page(server, name, file)


def _add_page(server: MCPServer[Any], name: str, file: str) -> None:
    @server.resource(f"gemma://pages/{name}", name=name, mime_type="text/markdown", description=file)
    def page() -> str:
        return (ROOT / file).read_text(encoding="utf-8")
