"""Tables computed from organized arrays: arrays in, tables out."""
