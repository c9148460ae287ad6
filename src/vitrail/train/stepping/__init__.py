"""What one step is made of: what is shown, the loss, its gradients, who may move the weights, and how."""
