"""Whole networks of the paper, one file a network."""

from .autoencoder import AutoEncoder, ListDecoder, SetDecoder, SetEncoder, set_autoencoder
from .classifier import SetClassifier
from .clevr import QuestionAnswering
from .gin import GIN
from .recurrent import RecurrentDecoder

__all__ = [
    "GIN",
    "AutoEncoder",
    "ListDecoder",
    "QuestionAnswering",
    "RecurrentDecoder",
    "SetClassifier",
    "SetDecoder",
    "SetEncoder",
    "set_autoencoder",
]
