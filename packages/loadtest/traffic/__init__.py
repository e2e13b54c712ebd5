"""Loads beyond fixed lengths: sessions, length distributions and shared prefixes."""
