"""From a model and pictures to stored predictions, and from stored predictions to figures."""
