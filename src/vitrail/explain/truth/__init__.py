"""Whether a map of what mattered is true: measured by taking patches away, by planted evidence, by losing weights."""
