"""Explanation of predictions: attribution maps, overlays, faithfulness, paper figures, and traces of forward passes."""
