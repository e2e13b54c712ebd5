"""Google's REST conventions: discovery documents, request validation, errors, filters, and the input of handlers."""
