"""Clients of a served model: an OpenAI client, events, metrics, and the wire client of the load generator."""
