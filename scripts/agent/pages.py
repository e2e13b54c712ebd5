"""Pages for a model to read before it acts, as MCP resources."""

from typing import Any, Final

from mcp.server.mcpserver import MCPServer

from gemma_serving.engine import runner

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
        return (runner.project_folder() / file).read_text(encoding="utf-8")
