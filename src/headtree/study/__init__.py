"""The two papers reproduced: their claims as tests, their tasks, and the training of their networks."""
