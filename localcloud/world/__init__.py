"""The state of the simulated cloud: store, time, scenario, identities and policies, and the runtimes that it asks to run things."""
