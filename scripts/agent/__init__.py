"""MCP server for assistants: plan, inspect and measure stacks and, if allowed, change them."""
