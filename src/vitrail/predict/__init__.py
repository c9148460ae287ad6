"""Prediction: from a trained or exported model and images to predictions, one implementation for every interface."""
