"""What each target is composed of: settings, names and labels, and the resources of a TPU or a Cloud Run stack."""
