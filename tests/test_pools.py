"""One battery for every pool: what a user may rely on, whichever layer is in the model."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspool

from .layouts import NAMES, lay_out

TOLERANCES = [  # dtype, atol, rtol against float64
    (torch.float64, 1e-12, 1e-12),
    (torch.float32, 1e-5, 1e-5),
    (torch.bfloat16, 1e-1, 2e-2),
    (torch.float16, 1e-2, 2e-3),
]


class PoolTester:
    dim = 3

    def make(self) -> torch.nn.Module:
        raise NotImplementedError

    def pool(self, dtype=torch.float64):
        torch.manual_seed(3)
        return self.make().to(dtype)

    def sets(self, sizes, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        sets = [torch.randn(n, self.dim, generator=generator, dtype=torch.float64) for n in sizes]
        return [s.to(dtype) for s in sets]

    def each_alone(self, pool, sets):
        """The truth of the battery: every set full, in a batch of its own."""
        return torch.cat([pool(s[None]) for s in sets])

    @given(
        sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        layout=st.sampled_from(NAMES),
        extra=st.integers(0, 3),
        junk=st.sampled_from([0.0, 1e9, float("nan"), float("inf"), float("-inf")]),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        seed=st.integers(0, 99),
    )
    def test_layouts_padding_and_neighbours_do_not_matter(
        self, sizes, layout, extra, junk, dtype, seed
    ):
        pool, sets = self.pool(dtype), self.sets(sizes, dtype, seed)
        x, keywords, _ = lay_out(layout, sets, extra, junk)
        got, expected = pool(x, **keywords), self.each_alone(pool, sets)
        assert got.dtype == dtype and got.shape == (len(sizes), self.dim)
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6)

    @given(n=st.integers(0, 20), seed=st.integers(0, 99))
    def test_permutation_invariant(self, n, seed):
        pool, (s,) = self.pool(), self.sets((n,), seed=seed)
        shuffled = s[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
        torch.testing.assert_close(pool(shuffled[None]), pool(s[None]))

    def test_batch_mates_change_no_bit(self):
        pool, sets = self.pool(torch.float32), self.sets((5, 2, 9, 0, 1), torch.float32)
        x, keywords, _ = lay_out("sizes", sets, extra=4, junk=float("nan"))
        together = pool(x, **keywords)
        apart = torch.cat(
            [pool(x[b : b + 1], sizes=keywords["sizes"][b : b + 1]) for b in range(5)]
        )
        assert torch.equal(together, apart)

    def test_the_empty_set_is_zero_and_has_zero_gradients(self):
        pool, x = self.pool(), torch.randn(2, 4, self.dim, dtype=torch.float64, requires_grad=True)
        y = pool(x, sizes=torch.tensor([0, 0]))
        assert (y == 0).all()
        assert (torch.autograd.grad(y.sum(), x)[0] == 0).all()
        for shape, keywords in (
            ((0, 4, self.dim), {}),
            ((2, 0, self.dim), {}),
            ((0, self.dim), {"offsets": torch.tensor([0, 0, 0])}),
            ((0, self.dim), {"offsets": torch.tensor([0])}),
        ):
            y = pool(torch.zeros(shape, dtype=torch.float64), **keywords)
            sets = shape[0] if not keywords else len(keywords["offsets"]) - 1
            assert y.shape == (sets, self.dim) and (y == 0).all()

    def test_padding_has_zero_gradient_even_if_it_holds_nan(self):
        pool, sets = self.pool(), self.sets((1, 3))
        for layout in ("mask", "sizes"):
            x, keywords, _ = lay_out(layout, sets, extra=2, junk=float("nan"))
            x.requires_grad_()
            inputs = (x, *pool.parameters())
            gradient, *others = torch.autograd.grad(pool(x, **keywords).sum(), inputs)
            assert (gradient[x.isnan()] == 0).all()
            assert gradient.isfinite().all() and all(g.isfinite().all() for g in others)

    @pytest.mark.parametrize("layout", NAMES[:3])
    def test_gradients(self, layout):
        pool = self.pool()
        x, keywords, _ = lay_out(layout, self.sets((0, 1, 4)), extra=1)
        inputs = (x.requires_grad_(), *pool.parameters())

        def function(x, *_):
            return pool(x, **keywords)

        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)

    @pytest.mark.parametrize("dtype, atol, rtol", TOLERANCES)
    def test_dtypes(self, dtype, atol, rtol):
        sets = self.sets((3, 1, 40), dtype)
        x, keywords, _ = lay_out("sizes", sets)
        y = self.pool(torch.float32)(x, **keywords)  # a float32 layer takes any dtype
        if dtype != torch.float64:
            assert y.dtype == dtype
        exact = self.pool()(x.double(), **keywords)
        torch.testing.assert_close(y.double(), exact, atol=max(atol, 1e-5), rtol=max(rtol, 1e-5))

    def test_sums_are_accumulated_in_float32_at_least(self):
        x = torch.full((1, 4096, self.dim), 0.1, dtype=torch.bfloat16)
        y, exact = self.pool(torch.float32)(x), self.pool()(x.double())
        torch.testing.assert_close(y.double(), exact, rtol=2**-8, atol=1e-2)

    def test_strides_do_not_matter(self):
        pool = self.pool()
        base = torch.randn(4, 2 * self.dim, 14, dtype=torch.float64)
        views = [base.transpose(1, 2)[:, ::2, : self.dim], base.mT[:, 3:, self.dim :]]
        views.append(base[:1, : self.dim].mT.expand(3, -1, -1))
        for view in views:
            torch.testing.assert_close(pool(view), pool(view.contiguous()))
            assert not view.is_contiguous()

    def test_compiled_values_and_gradients_equal_eager(self):
        pool = self.pool()
        x, keywords, _ = lay_out("sizes", self.sets((2, 0, 5)))
        packed, offsets, _ = lay_out("offsets", self.sets((2, 0, 5)))
        for data, arguments in ((x, {}), (x, keywords), (packed, offsets)):
            data = data.requires_grad_()
            inputs = (data, *pool.parameters())
            compiled = torch.compile(pool, fullgraph=True)
            expected, got = pool(data, **arguments), compiled(data, **arguments)
            torch.testing.assert_close(got, expected)
            g = torch.randn_like(expected)
            for a, b in zip(
                torch.autograd.grad(got, inputs, g),
                torch.autograd.grad(expected, inputs, g),
                strict=True,
            ):
                torch.testing.assert_close(a, b)

    def test_export(self):
        pool = self.pool()
        x, keywords, _ = lay_out("sizes", self.sets((2, 1, 5)))
        batch = torch.export.Dim("batch", min=2)
        program = torch.export.export(
            pool, (x,), keywords, dynamic_shapes={"x": {0: batch}, "sizes": {0: batch}}
        )
        other, keywords, _ = lay_out("sizes", self.sets((5, 0, 2, 3), seed=4))
        torch.testing.assert_close(program.module()(other, **keywords), pool(other, **keywords))
        names = {str(node.target) for node in program.graph.nodes}
        assert not any("fspool" in name for name in names)  # runs where fspool is not installed

    def test_state_dict_round_trip_and_deepcopy(self):
        pool, x = self.pool(), torch.randn(2, 5, self.dim, dtype=torch.float64)
        other = self.make().double()
        other.load_state_dict(pool.state_dict())
        assert torch.equal(other(x), pool(x)) and torch.equal(copy.deepcopy(pool)(x), pool(x))
        assert set(pool.state_dict()) == {name for name, _ in pool.named_parameters()}

    def test_autocast_keeps_the_dtype_and_the_precision(self):
        pool, x = self.pool(torch.float32), torch.randn(2, 50, self.dim)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(pool(x), pool(x)) and pool(x).dtype == torch.float32
            inside, half = pool(x), pool(x.bfloat16())
        assert torch.equal(inside, pool(x)) and half.dtype == torch.bfloat16

    def test_vmap_and_func_grad(self):
        pool, x = self.pool(), torch.randn(4, 5, self.dim, dtype=torch.float64)
        mapped = torch.func.vmap(lambda s: pool(s[None])[0])(x)
        torch.testing.assert_close(mapped, pool(x))
        got = torch.func.grad(lambda x: pool(x).square().sum())(x)
        x.requires_grad_()
        (expected,) = torch.autograd.grad(pool(x).square().sum(), x)
        torch.testing.assert_close(got, expected)
        each = torch.func.vmap(torch.func.grad(lambda s: pool(s[None]).square().sum()))(x)
        torch.testing.assert_close(each, expected)

    @pytest.mark.parametrize("shared", [False, True])
    def test_an_ensemble_under_vmap_learns(self, shared):
        """Stacked parameters: inside of vmap no tensor says that it wants a gradient."""
        pools = [self.pool() for _ in range(3)]
        x = torch.randn(3, 2, 5, self.dim, dtype=torch.float64, requires_grad=True)

        def call(parameters, buffers, x):
            return torch.func.functional_call(pools[0], (parameters, buffers), (x,))

        parameters, buffers = torch.func.stack_module_state(pools)
        shared = shared and bool(parameters)  # something has to be mapped
        many = torch.func.vmap(call, (0, 0, None if shared else 0))
        y = many(parameters, buffers, x[0] if shared else x)
        got = torch.autograd.grad(y.square().sum(), [x, *parameters.values()])
        each = [pool(x[0 if shared else i]) for i, pool in enumerate(pools)]
        own = [p for pool in pools for p in pool.parameters()]
        loss = sum(y.square().sum() for y in each)
        dx, *expected = torch.autograd.grad(loss, [x, *own])
        torch.testing.assert_close(y, torch.stack(each))
        torch.testing.assert_close(got[0], dx)
        if own:
            torch.testing.assert_close(got[1], torch.stack(expected))


class TestFSPool(PoolTester):
    def make(self):
        return fspool.FSPool(self.dim, knots=4)

    @pytest.mark.parametrize("temperature", [None, 1.0])
    def test_no_features_are_no_special_case(self, temperature):
        x, weight = torch.ones(2, 3, 0), torch.ones(0, 4)
        y, order = fspool.functional.fspool(x, weight, temperature=temperature, return_order=True)
        assert y.shape == (2, 0)
        assert fspool.functional.fsunpool(y, weight, order).shape == x.shape


class TestFSPoolOnes(PoolTester):
    def make(self):
        return fspool.FSPool(self.dim, knots=2, init="ones")

    def test_starts_as_sum_pooling(self):
        x = torch.randn(4, 6, self.dim)
        torch.testing.assert_close(self.make()(x), fspool.nn.SumPool()(x))


class TestFSPoolRelaxed(PoolTester):
    def make(self):
        return fspool.FSPool(self.dim, knots=4, temperature=0.5)


@pytest.mark.usefixtures("walking")
class TestFSPoolRelaxedBanded(PoolTester):
    def make(self):
        return fspool.FSPool(self.dim, knots=4, temperature=0.5)


class TestSumPool(PoolTester):
    def make(self):
        return fspool.nn.SumPool()

    def test_is_the_sum(self):
        x = torch.randn(2, 4, 3)
        torch.testing.assert_close(self.make()(x), x.sum(1))


class TestMeanPool(PoolTester):
    def make(self):
        return fspool.nn.MeanPool()

    def test_is_the_mean(self):
        x = torch.randn(2, 4, 3)
        torch.testing.assert_close(self.make()(x), x.mean(1))


class TestMaxPool(PoolTester):
    def make(self):
        return fspool.nn.MaxPool()

    def test_is_the_maximum(self):
        x = torch.randn(2, 4, 3)
        torch.testing.assert_close(self.make()(x), x.amax(1))
