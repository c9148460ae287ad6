"""Reports of a run, built from its stored files: HTML pages, model cards, data cards, and the CLAIM appendix."""
