"""Rank collapse with depth, and the paths through a network.

`residual` measures how far the residual stream is from rank one after every layer, with and without skip
connections and MLPs (`rank_residual`); `norms` and `bound` are the norm and the upper bound it is compared with,
`untrained` makes the same network before training. `paths` gives the contribution of paths by length
(`path_lengths`), through the linear `frozen_network` of an input (`frozen_networks`).
"""
