"""Datasets: read, verify, generate. No training code."""
