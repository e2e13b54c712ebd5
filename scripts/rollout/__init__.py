"""Shift the traffic of a Cloud Run service to its new revision in steps, and roll back if a check fails."""
