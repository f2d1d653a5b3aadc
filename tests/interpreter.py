"""Triton kernels where there is no GPU: the interpreter, and where tensors have to be."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def repair() -> None:
    """Triton 3.6 counts a loop with ``int`` of an array of one element, which numpy 2.4 refuses."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if DEVICE == "cpu":
    repair()
