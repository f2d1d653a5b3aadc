"""Datasets: fetch, read, verify, generate. No training code."""
