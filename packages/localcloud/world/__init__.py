"""The state of the simulated cloud: store, time, scenario, identities, policies, and the interfaces of the runtimes."""
