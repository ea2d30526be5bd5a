"""The questionnaire: coupled trees on all axes of an array, each organized from the others."""
