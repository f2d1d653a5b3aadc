"""Adapters to other libraries. Each file imports its library; ``import fspool`` imports none."""
