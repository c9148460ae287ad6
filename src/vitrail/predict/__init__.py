"""From a trained model and pictures to answers, the same behind every door."""
