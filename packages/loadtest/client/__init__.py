"""How to talk to a served model: an OpenAI client, events, metrics, and the wire client of the load generator."""
