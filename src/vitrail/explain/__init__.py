"""What a model sees and does, in pictures and step by step."""
