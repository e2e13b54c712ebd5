"""What a deployment costs, and the subject that rules look at."""
