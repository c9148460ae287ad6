"""How a run survives: whole checkpoints, signals, exact resume, and more time for a run that was done."""
