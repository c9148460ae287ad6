"""Fine-tuning from a checkpoint: features, linear probe, planner, and weight averaging."""
