"""Whole networks of the paper, one file a network."""

from .autoencoder import AutoEncoder, ListDecoder, SetDecoder, SetEncoder, set_autoencoder

__all__ = ["AutoEncoder", "ListDecoder", "SetDecoder", "SetEncoder", "set_autoencoder"]
