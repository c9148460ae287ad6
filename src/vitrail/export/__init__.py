"""Export: a trained model as one ONNX or torch.export file that runs without Vitrail, verified before it is kept."""
