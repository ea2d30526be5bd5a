"""Numbers about organized attention: arrays in, tables out."""
