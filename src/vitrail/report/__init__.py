"""Reports of a run, built from its stored files: HTML pages, dossiers, model cards and data cards."""
