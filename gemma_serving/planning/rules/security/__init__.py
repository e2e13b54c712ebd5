"""Rules for a server's exposed interfaces and loaded files."""
