"""What would ruin a training, found before a minute is spent: one idea of what can be wrong a file."""
