"""Google's REST conventions: discovery documents, request validation, errors, filters, and what a handler receives."""
