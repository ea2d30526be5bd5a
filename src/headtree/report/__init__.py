"""Figures and pages made from runs."""
