"""Where the numbers of a run go beside its own files: TensorBoard, W&B, MLflow, trackio."""
