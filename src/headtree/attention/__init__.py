"""What a network tensor is and where it comes from."""
