"""Steps in a CUDA graph."""

import torch


def capture(step):
    """The graph of a step, and its results: every replay leaves them there."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # whatever is compiled or allocated once
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = step()
    return graph, results


def replays_with_other_inputs(step, *inputs):
    """Turned round in place after the capture, they are seen by a replay, bit by bit."""
    graph, results = capture(step)
    for tensor in inputs:
        tensor.copy_(tensor.flip(0))
    graph.replay()
    for a, b in zip(results, step(), strict=True):
        assert torch.equal(a, b)
