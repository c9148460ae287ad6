"""From a trained model and images to answers, the same behind every door."""
