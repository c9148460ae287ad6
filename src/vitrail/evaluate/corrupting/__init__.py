"""Pictures disturbed on purpose, by kind and severity: what a model meets outside of its test set."""
