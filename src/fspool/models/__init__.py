"""Whole networks of the paper, one file a network."""

from .autoencoder import AutoEncoder, ListDecoder, SetDecoder, SetEncoder, set_autoencoder
from .classifier import SetClassifier
from .clevr import QuestionAnswering
from .dspn import DSPN, ImplicitDSPN
from .gin import GIN
from .recurrent import RecurrentDecoder
from .resnet import ImageEncoder
from .set_encoder import PairEncoder
from .set_predictor import SetPredictor

__all__ = [
    "DSPN",
    "GIN",
    "AutoEncoder",
    "ImageEncoder",
    "ImplicitDSPN",
    "ListDecoder",
    "PairEncoder",
    "QuestionAnswering",
    "RecurrentDecoder",
    "SetClassifier",
    "SetDecoder",
    "SetEncoder",
    "SetPredictor",
    "set_autoencoder",
]
