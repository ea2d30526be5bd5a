"""How alike the heads of a network are, on each of several inputs."""
