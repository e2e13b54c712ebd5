"""Rules of the platforms: places, probes, hosts, quotas, loading."""
