"""Speed and memory of a model on this machine, beside what the machine can do at most."""
