"""Trainings from a checkpoint: features once, probes, tuning from the best of them, and the choice at the end."""
