"""The reports of a sweep and of a comparison: tables, charts, Markdown and HTML."""
