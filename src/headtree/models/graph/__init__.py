"""A forward pass as a graph of torch operations, and what can be read off it.

`forward_graph` records the graph. `attention_calls` finds attention in it, `head_weights` the matrices of each
head, `residual_stream` and `read_stream` the residual stream, and `linearize` the linear map between two values.
`call_places` and `stream_places` say where all of these are on any other input.
"""
