"""Whole networks of the paper, one file a network."""

from .autoencoder import AutoEncoder, ListDecoder, SetDecoder, SetEncoder, set_autoencoder
from .classifier import SetClassifier
from .recurrent import RecurrentDecoder

__all__ = [
    "AutoEncoder",
    "ListDecoder",
    "RecurrentDecoder",
    "SetClassifier",
    "SetDecoder",
    "SetEncoder",
    "set_autoencoder",
]
