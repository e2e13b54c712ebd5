"""How scripts talk to a served model: access, an OpenAI client, events, metrics, and the wire client of the benchmark."""
