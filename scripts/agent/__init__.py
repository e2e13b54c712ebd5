"""An MCP server through which an assistant plans, inspects, measures and, where it was allowed, changes stacks."""
