"""Compile the Triton kernels for a GPU where there is none: ``python -m tests.offline``.

The interpreter takes more than the compiler does. So every launch is turned into a compilation for
the same arguments, and the functions that launch run as they are, on CPU tensors and to no result.
"""

import sys
from itertools import product

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class Driver:
    """As much of a driver as the compiler asks for: a Hopper GPU that nothing runs on."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


# Triton 3.6 takes the features of some tiles from the high word of "thread << 31 | block << 37",
# and with them bits that do not belong there: misaligned addresses. Such a tile must not be used.
MISCOMPILED = ", 2147483648;"
SHARED = 227 << 10  # bytes of shared memory that a program may have there
MANY = 40  # sets, among which large ones are looked for


def compile_only(kernel, grid):
    def launch(*arguments, **options):
        compiled = kernel.warmup(*arguments, grid=grid, **options)
        if MISCOMPILED in compiled.asm["ptx"]:
            raise SystemExit(
                f"{kernel.fn.__name__} with {options} is miscompiled; change its tile."
            )
        if compiled.metadata.shared > SHARED:
            raise SystemExit(
                f"{kernel.fn.__name__} with {options} wants {compiled.metadata.shared} bytes of "
                f"shared memory; expected {SHARED} at most."
            )

    return launch


def pool() -> None:
    from fspool.kernels.cuda import moves, pool

    for log in pool.TILES:
        x, weight = torch.randn(1, 1, 1 << log, 48), torch.randn(1, 48, 5)
        pool.pool(x, weight, None, None, None, True, True)
    kinds = [(8, "full"), (40, "mask"), (300, "lengths"), (40, "offsets"), (5000, "own")]
    for (n, kind), knots in product(kinds, (5, 8, 20)):  # in registers, and looked up
        weight = torch.randn(1, 16, knots)
        packed = kind in ("offsets", "own")
        x = torch.randn(1, n, 16) if packed else torch.randn(1, 1, n, 16)
        if kind == "mask":
            x = x.bfloat16()
        z = torch.randn(1, MANY if kind == "own" else 1, 16)
        sets = {
            "full": (None, None, None),
            "mask": (torch.ones(1, 1, n, dtype=torch.bool), None, None),
            "lengths": (None, torch.tensor([[n]]), None),
            "offsets": (None, None, torch.tensor([0, n])),
            "own": (None, None, torch.linspace(0, n, MANY + 1).long()[None]),
        }[kind]
        _, ranks, kept = pool.pool(x, weight, *sets, True, True)
        pool.pull(z, x, weight, ranks, kept, *sets)
        pool.knots(z, x, ranks, *sets, knots, torch.float32)
        pool.pool_ranked(x, weight, ranks, *sets)
        moves.to_ranks(x, ranks, *sets)
        moves.from_ranks(x, ranks, *sets)
        if kind != "mask":
            pool.pool_ranked(x, weight, None, *sets)
            pool.unpool(z, weight, None, *sets, n)


def relaxed_sort() -> None:
    from fspool.kernels.cuda import relaxed_sort

    temperature = torch.ones(())
    for dtype in (torch.float32, torch.float64):
        for shape, lengths, offsets in (
            ((1, 2, 9, 16), torch.tensor([[9, 3]]), None),
            ((1, 2, 9, 48), None, None),
            ((1, 9, 16), None, torch.tensor([0, 4, 9])),
        ):
            x = torch.randn(shape, dtype=dtype)
            rest = (temperature.to(dtype), x, lengths, offsets)
            relaxed_sort.sort(x, x, rest[0], None, lengths, offsets)
            relaxed_sort.unsort(x, x, *rest)
            relaxed_sort.slope(x, x, x, x, *rest)
            relaxed_sort.pull(x, x, x, x, *rest)


def chamfer() -> None:
    from fspool.kernels.cuda import chamfer

    for channels, dtype in ((3, torch.float32), (20, torch.float64)):
        x = torch.randn(2, 300, channels, dtype=dtype)
        mask = torch.ones(2, 300, dtype=torch.bool)
        chamfer.nearest(x, x, mask, "huber")
        chamfer.nearest(x, x, None, "squared")


def assignment() -> None:
    from fspool.kernels.cuda import assignment

    for n, m in ((10, 10), (3, 32), (1, 1)):
        assignment.assign(torch.randn(2, n, m))


def rays() -> None:
    from fspool.kernels.cuda import rays

    ray, solids = torch.randn(3, 2, 300), torch.rand(8, 2, 5)
    for point in (torch.randn(3, 2, 1), ray):
        rays.nearest(point, ray, solids, 1e-3)
        rays.blocked(point, ray, solids, 1e-3)


def recurrence() -> None:
    from fspool.kernels.cuda import recurrence

    for width in (5, 32, 64):
        state, weight, bias = (
            torch.randn(1, *s) for s in ((3, width), (4 * width, width), (4 * width,))
        )
        hidden, cells = recurrence.recurrence(state, weight, bias, 4)
        recurrence.pull(hidden, hidden, cells, state, weight, bias)


def lstm() -> None:
    from fspool.kernels.cuda import lstm

    for width, dtype, batch in (
        (256, torch.bfloat16, 64),  # 16 sequences a program
        (256, torch.bfloat16, 640),  # 32 of them
        (256, torch.bfloat16, 6400),  # 64, in several launches
        (128, torch.bfloat16, 6400),
        (64, torch.bfloat16, 6400),
        (32, torch.bfloat16, 64),  # all weights in one program
        (20, torch.float32, 3),  # step by step
    ):
        x, weight = torch.randn(1, 9, 4 * width), torch.randn(1, 4 * width, width).to(dtype)
        words, start = torch.zeros(1, batch, 2).byte(), torch.zeros(1, batch).int()
        hidden, cell, *kept = lstm.lstm(x, weight, words, start, True)
        lstm.pull(hidden, cell, weight, start, *kept)
        lstm.lstm(torch.randn(1, batch, 2, 4 * width), weight, None, None, False)


def neighbours() -> None:
    from fspool.kernels.cuda import neighbours

    f32, f64 = torch.float32, torch.float64
    for dim, dtype in ((1, f32), (32, torch.bfloat16), (37, f32), (64, f32), (64, f64)):
        x, starts = torch.randn(2, 100, dim, dtype=dtype), torch.zeros(2, 101).int()
        for edges in (200, 900):  # few and many
            neighbours.neighbour_sum(x, starts, torch.zeros(2, edges).int(), dim - 1.0)


def perceptron() -> None:
    from fspool.kernels.cuda import perceptron

    for columns, hidden, out, sizes in (
        (2, 32, 32, torch.tensor([[100, 3]])),
        (32, 32, 2, None),
        (64, 64, 64, None),
        (16, 16, 10, None),
    ):
        x = torch.randn(1, 2, 100 if hidden > 16 else 4, columns)
        first, second = torch.randn(1, hidden, columns), torch.randn(1, out, hidden)
        y = perceptron.perceptron(x, first, first[..., 0], second, second[..., 0], sizes)
        perceptron.pull(y, x, first, first[..., 0], second, sizes, out == 2)


def row_norm() -> None:
    from fspool.kernels.cuda import row_norm

    for dim, dtype, relu in (
        (16, torch.float32, True),
        (64, torch.float32, False),
        (100, torch.bfloat16, True),
    ):
        x, rows = torch.randn(2, 500, dim, dtype=dtype), torch.tensor([500, 3])
        one = torch.ones(2, dim)
        row_norm.row_norm(x, rows, one, one, one, one, 1e-5, 0.1, relu)
        row_norm.pull(x, x, rows, one, one, one, 1e-5, relu)


def normed_layers() -> None:
    from fspool.kernels.cuda import normed_layers

    for columns, dim in ((7, 16), (32, 32), (64, 64), (64, 1)):
        x, rows = torch.randn(2, 500, columns), torch.tensor([500, 3])
        weights, one = (torch.randn(2, dim, columns), torch.randn(2, dim, dim)), torch.ones(2, dim)
        y = normed_layers.normed_layers(
            *(x, rows, weights[0], *[one] * 5, weights[1], *[one] * 5), 1e-5, 0.1
        )[0]
        normed_layers.pull(y, x, rows, y, y, *weights, *[one] * 7, 1e-5, dim != 16)


def draws() -> None:
    from fspool.kernels.cuda import draws

    sets = torch.zeros(9, 2).byte(), torch.tensor([0, 4, 9]), torch.zeros(2).byte()
    images, streams = torch.zeros(1, 2, 2).long(), torch.zeros(1, 2, 2).long()
    for own, mask, everywhere, dtype in (
        (streams, False, False, torch.float32),
        (streams, True, True, torch.float32),
        (streams, True, False, torch.float64),
        (streams[..., :1], False, True, torch.float32),
    ):
        draws.draw_sets(sets, images, own, 0.05, 342, 27, mask, everywhere, dtype)


def graph_batches() -> None:
    from fspool.kernels.cuda import graph_batches

    kinds, (firsts, ends) = torch.zeros(9).int(), (torch.zeros(2, n, 2).long() for n in (3, 4))
    graph_batches.take(kinds, kinds, kinds, firsts, ends, 5, 7)


if __name__ == "__main__":
    triton.runtime.driver.set_active(Driver())
    JITFunction.__getitem__ = compile_only
    everything = (
        *(pool, relaxed_sort, chamfer, assignment, rays, recurrence, lstm, neighbours, perceptron),
        *(row_norm, normed_layers, draws, graph_batches),
    )
    {kernels.__name__: kernels for kernels in everything}[sys.argv[1]]()
