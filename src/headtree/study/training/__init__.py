"""Training of the Transformer-XL and the ViT that come with headtree."""
