"""One list of sets, (n, D) each, in every layout that the package takes."""

import torch

NAMES = ("mask", "sizes", "offsets", "nested")


def lay_out(name, sets, extra=0, junk=0.0):
    """(x, keyword arguments, gather): gather(x) gives back the rows as a list of sets."""
    sizes = torch.tensor([len(s) for s in sets])
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    if name in ("offsets", "nested"):
        x = torch.cat(list(sets))
        if name == "nested":
            x = torch.nested.nested_tensor_from_jagged(x, offsets)
            return x, {}, lambda out: list(out.unbind())
        return x, {"offsets": offsets}, lambda out: list(out.split(sizes.tolist()))
    length = int(sizes.max()) + extra
    x = sets[0].new_full((len(sets), length, sets[0].shape[1]), junk)
    mask = torch.zeros(len(sets), length, dtype=torch.bool)
    for b, s in enumerate(sets):
        # With a mask the elements lie anywhere, in order.
        rows = torch.randperm(length)[: len(s)].sort().values if name == "mask" else slice(len(s))
        x[b, rows] = s
        mask[b, rows] = True
    keywords = {"mask": mask} if name == "mask" else {"sizes": sizes}
    return x, keywords, lambda out: [out[b][mask[b]] for b in range(len(sets))]
