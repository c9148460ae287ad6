"""Statistics: confidence intervals, ROC areas, paired tests and predictive values."""
