"""CLEVR: scenes of a few objects, and questions with programs that answer them (section 6.3).

The original files are read where somebody has them. Otherwise :mod:`.generate` makes a twin: other
scenes and questions of the same distribution, in the same format. Its wording is this project's
own.

``vocabulary`` has the names of everything, ``arrays`` what a model is given. ``programs`` answers
questions, ``files`` and ``compact`` read them. ``placement``, ``camera`` and ``visibility`` make
scenes; ``families``, ``tables``, ``questions`` and ``words`` make questions about them.
"""

from .arrays import Clevr, Questions, Scenes
from .compact import load

__all__ = ["Clevr", "Questions", "Scenes", "load"]
