"""Composition of both targets: settings, names, labels, and the resources of a TPU or Cloud Run stack."""
