"""Training on several processes: collectives, DDP, FSDP2 and liveness checks."""
