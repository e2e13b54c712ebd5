"""Status of every stack: capacity, phase, health, load, cost, drift and the next command."""
