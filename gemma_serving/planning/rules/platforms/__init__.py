"""Rules for the platforms: zones and regions, probes, hosts, quotas, loading."""
