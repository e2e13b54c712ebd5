"""Check the new revision of a Cloud Run service without traffic, and move all traffic to it or none."""
