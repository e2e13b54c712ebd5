"""Move the traffic of a Cloud Run service to its new revision after checks."""
