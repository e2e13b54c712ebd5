"""Copy a checkpoint into a bucket: in concurrent parts, and resumable after it was killed."""
