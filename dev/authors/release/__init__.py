"""Artefacts of a release: plugin archives, SDKs, wheels, and their checksums."""
