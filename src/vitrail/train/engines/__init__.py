"""Several processes that train one model: who they are, what they tell each other, and how gradients come together."""
