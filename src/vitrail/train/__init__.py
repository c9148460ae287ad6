"""Training: the plan, the loop that follows it, and the run folder with its results."""
