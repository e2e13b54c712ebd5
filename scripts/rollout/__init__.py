"""Move the traffic of a Cloud Run service to its new revision, step by step, and back if a check fails."""
