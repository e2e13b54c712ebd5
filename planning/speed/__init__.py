"""How fast a deployment starts and answers."""
