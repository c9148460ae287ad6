"""The figures of the papers, each one plain function of a model and some pictures."""
