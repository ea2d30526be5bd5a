"""Numbers about heads, layers and trees: arrays and organizations in, tables out."""
