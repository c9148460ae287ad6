"""Benchmarks: throughput and memory of a model on this machine, with the machine's limits, and a cost model."""
