"""The estimators room: scikit-learn's way of saying `fit` and `predict`, over the same trainings and answers."""
