"""What the command line and Python share: wishes, models by any name, evaluation, and how progress is shown."""
