"""From arrays and trees to distances, affinities, diffusion coordinates, and new trees."""
