"""Tasks for an assistant that uses `scripts.agent`, on a local cloud, and drivers that do them: scripted, gullible, any model."""
