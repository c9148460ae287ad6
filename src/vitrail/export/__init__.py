"""From a trained model to one file that answers as it does, without Vitrail: proved before it is kept."""
