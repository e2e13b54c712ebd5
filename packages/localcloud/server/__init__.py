"""The HTTP server: dispatch of Google's methods to services, injected faults, the admin API."""
