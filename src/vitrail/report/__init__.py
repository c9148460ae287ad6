"""One self-contained page that says what a run is worth, built from what the run stored."""
