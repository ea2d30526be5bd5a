"""Capture attention and verify it: softmax of the captured scores, times V, must equal the module's output.

`probe` finds the attention calls of a model with a short run, `watch` reports them while it runs, `logits` holds
what enters each softmax, `select` chooses layers and heads, and `collect` runs the inputs and fills the tensors. A
call is identified by its position in call order: the same module called twice makes two sites.
"""
