"""What torch's own autograd tests try out, in forty small tests: each must go the same way watched."""

from __future__ import annotations

import gc
import threading
import unittest
import warnings
import weakref
from typing import Any

import torch
import torch._dynamo  # checkpoints import it: here, so that no test takes seconds
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.graph import (
    get_gradient_edge,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.utils.checkpoint import checkpoint

SECOND_TIME = "backward through the graph a second time"
IN_PLACE = "modified by an inplace operation"


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double, requires_grad=True)


class Product(Function):
    """A product that saves both factors, and counts its backward passes."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return grad * b, grad * a


class SumAndDifference(Function):
    """Two outputs of one node, one of which may get no gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return a + b, a - b

    @staticmethod
    def backward(ctx: Any, total: Tensor | None, difference: Tensor | None) -> Any:
        grads = [g for g in (total, difference) if g is not None]
        first = sum(grads[1:], grads[0])
        if difference is None:
            return first, total
        return first, -difference if total is None else total - difference


class Root(Function):
    """Saves its output, and can be run backward only once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.div(grad, 2 * y)


class TripleInPlace(Function):
    """Changes its input in place and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


product: Any = Product.apply
sum_and_difference: Any = SumAndDifference.apply
root: Any = Root.apply
triple_in_place: Any = TripleInPlace.apply


class Suite(unittest.TestCase):
    def assert_equal(self, got: Any, expected: Any) -> None:
        torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype))

    # hooks on tensors and nodes

    def test_tensor_hooks_see_and_replace_gradients(self) -> None:
        x, seen = leaf(1, 2), []
        y = x * 3
        y.register_hook(lambda g: seen.append(g.clone()))
        handle = y.register_hook(lambda g: g * 10)
        y.sum().backward()
        handle.remove()
        self.assert_equal(x.grad, [30, 30])
        self.assert_equal(seen[0], [1, 1])

    def test_hooks_run_in_the_order_of_registration(self) -> None:
        x, order = leaf(1), []
        y = x.exp()
        node = y.grad_fn
        assert node is not None
        y.register_hook(lambda g: order.append("tensor"))
        node.register_prehook(lambda gs: order.append("before"))
        node.register_hook(lambda inputs, outputs: order.append("after"))
        y.backward()
        self.assertEqual(order, ["tensor", "before", "after"])

    def test_post_accumulate_grad_hook_runs_after_the_sum(self) -> None:
        x, seen = leaf(2), []
        x.register_post_accumulate_grad_hook(lambda t: seen.append(float(t.grad)))
        (x * 3).sum().backward()
        (x * 4).sum().backward()
        self.assertEqual(seen, [3, 7])

    def test_accumulate_grad_node_keeps_hooks(self) -> None:
        x, seen = leaf(1, 1), []
        node: Any = x.view_as(x).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        node.register_hook(lambda inputs, outputs: seen.append(len(outputs)))
        (x * x).sum().backward()
        self.assertEqual(len(seen), 1)
        self.assertIs(node.variable, x)

    def test_multi_grad_hook_waits_for_all(self) -> None:
        a, b, seen = leaf(1), leaf(2), []
        handle = register_multi_grad_hook((a, b), lambda grads: seen.append(grads))
        (a * b).sum().backward()
        handle.remove()
        self.assert_equal(torch.stack([g for g in seen[0] if g is not None]), [[2], [1]])

    def test_an_error_in_a_hook_is_the_programs(self) -> None:
        x = leaf(1)
        y = x.exp()
        y.register_hook(lambda g: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            y.backward(retain_graph=True)
        self.assertIsNone(x.grad)

    def test_a_hook_may_call_backward(self) -> None:
        x, inner = leaf(3), leaf(5)

        def hook(grad: Tensor) -> Tensor:
            with torch.enable_grad():
                (inner * inner).sum().backward()
            return grad

        y = x * x
        y.register_hook(hook)
        y.sum().backward()
        self.assert_equal(x.grad, [6])
        self.assert_equal(inner.grad, [10])

    # a second time

    def test_second_backward_raises(self) -> None:
        x = leaf(1, 2)
        loss = (x * x).sum()
        loss.backward()
        with self.assertRaisesRegex(RuntimeError, SECOND_TIME):
            loss.backward()
        self.assert_equal(x.grad, [2, 4])

    def test_second_backward_of_nodes_that_saved_nothing(self) -> None:
        x = leaf(1, 2)
        loss = x.sum()
        loss.backward()
        loss.backward()
        self.assert_equal(x.grad, [2, 2])

    def test_retained_graph_is_freed_by_the_last_call(self) -> None:
        x = leaf(2)
        y = x**3
        for _ in range(3):
            y.backward(retain_graph=True)
        y.backward()
        self.assert_equal(x.grad, [48])
        with self.assertRaisesRegex(RuntimeError, SECOND_TIME):
            torch.autograd.grad(y, x)

    def test_saved_tensors_of_a_function_are_freed(self) -> None:
        a, b = leaf(2), leaf(3)
        y = product(a, b)
        y.backward()
        with self.assertRaisesRegex(RuntimeError, SECOND_TIME):
            y.backward()
        with self.assertRaisesRegex(RuntimeError, SECOND_TIME):
            _ = y.grad_fn.saved_tensors

    def test_freed_fields_of_a_node_cannot_be_read(self) -> None:
        x = leaf(2)
        y = x.exp()
        self.assert_equal(y.grad_fn._saved_result, y.detach())  # type: ignore[union-attr]
        y.backward()
        with self.assertRaisesRegex(RuntimeError, SECOND_TIME):
            _ = y.grad_fn._saved_result  # type: ignore[union-attr]

    def test_half_of_a_graph_runs_for_some_inputs(self) -> None:
        a, b = leaf(2), leaf(3)
        loss = (a.exp() * b.sin()).sum()
        loss.backward(inputs=[a], retain_graph=True)
        self.assertIsNone(b.grad)
        (only,) = torch.autograd.grad(loss, b)
        self.assert_equal(only, a.detach().exp() * b.detach().cos())

    # changed in place

    def test_input_changed_in_place_raises(self) -> None:
        x, w = leaf(1, 2), torch.ones(2, dtype=torch.double)
        loss = (x * w).sum()
        w.add_(1)
        with self.assertRaisesRegex(RuntimeError, IN_PLACE):
            loss.backward()

    def test_output_changed_in_place_raises_and_input_does_not(self) -> None:
        x = leaf(0.5)
        good, bad = x.sin(), x.sigmoid()
        (good * 1).add_(1)
        good.mul_(2).sum().backward()
        bad.add_(1)
        with self.assertRaisesRegex(RuntimeError, IN_PLACE):
            bad.sum().backward()

    def test_view_of_a_leaf_cannot_be_changed(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "leaf Variable"):
            leaf(1, 2)[0].add_(1)

    def test_chunks_cannot_be_changed(self) -> None:
        first, _ = (leaf(1, 2, 3, 4) * 1).chunk(2)
        with self.assertRaisesRegex(RuntimeError, "is a view and is being modified inplace"):
            first.mul_(2)

    def test_change_through_a_view_reaches_the_base(self) -> None:
        x = leaf(1, 2, 3)
        y = x * 2
        y[1:].mul_(5)
        y.select(0, 0).copy_(x[2])
        y.sum().backward()
        self.assert_equal(x.grad, [0, 10, 11])

    def test_function_that_changes_its_input(self) -> None:
        x = leaf(1, 2)
        y = x * 1
        out = triple_in_place(y)
        self.assertIs(out, y)
        out.sum().backward()
        self.assert_equal(x.grad, [3, 3])

    def test_detach_in_place_is_refused(self) -> None:
        x = leaf(1)
        y = x.exp()
        z = y * y
        y.detach_()
        with self.assertRaisesRegex(RuntimeError, "detached in-place"):
            z.sum().backward()

    # double backward

    def test_gradient_of_a_gradient(self) -> None:
        x = leaf(2)
        (first,) = torch.autograd.grad(x**3, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x, create_graph=True)
        second.backward()
        self.assert_equal(x.grad, [6])

    def test_gradcheck_of_functions(self) -> None:
        self.assertTrue(torch.autograd.gradcheck(product, (leaf(1, 2), leaf(3, 4))))
        self.assertTrue(torch.autograd.gradgradcheck(product, (leaf(1, 2), leaf(3, 4))))

    def test_once_differentiable_refuses_a_second_derivative(self) -> None:
        x = leaf(4)
        (first,) = torch.autograd.grad(root(x) ** 2, x, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
            first.backward()

    # nodes with several outputs, edges, unused parts

    def test_two_outputs_of_one_node(self) -> None:
        a, b = leaf(1), leaf(2)
        total, difference = sum_and_difference(a, b)
        total.backward(retain_graph=True)
        difference.backward()
        self.assert_equal(a.grad, [2])
        self.assert_equal(b.grad, [0])

    def test_unused_input_is_none_or_refused(self) -> None:
        a, b = leaf(1), leaf(2)
        self.assertIsNone(torch.autograd.grad(a * 2, (a, b), allow_unused=True)[1])
        with self.assertRaisesRegex(RuntimeError, "not have been used"):
            torch.autograd.grad(a * 2, (a, b))

    def test_gradient_edges_stand_for_tensors(self) -> None:
        x = leaf(3)
        y = x * x
        edge = get_gradient_edge(y)
        z = y.exp()
        del y
        (grad,) = torch.autograd.grad(z, edge)
        self.assert_equal(grad, z.detach())

    def test_retained_gradients_follow_changes_in_place(self) -> None:
        x = leaf(1, 2)
        y = x * 2
        y.retain_grad()
        z = y * 3
        y.mul_(4)
        (y.sum() + z.sum()).backward()
        self.assert_equal(y.grad, [1, 1])
        self.assert_equal(x.grad, [14, 14])

    # saved tensors

    def test_identity_of_what_a_function_saved(self) -> None:
        weight = torch.nn.Parameter(torch.ones(1, dtype=torch.double))
        y = product(leaf(2), weight)
        self.assertIs(y.grad_fn.saved_tensors[1], weight)

    def test_hooks_of_the_program_pack_and_unpack(self) -> None:
        packed: list[tuple[int, ...]] = []

        def pack(t: Tensor) -> Any:
            packed.append(tuple(t.shape))
            return t.detach().clone()

        x = leaf(1, 2)
        with saved_tensors_hooks(pack, lambda t: t * 10):
            y = x * x
        y.sum().backward()
        self.assertEqual(packed, [(2,), (2,)])
        self.assert_equal(x.grad, [20, 40])

    def test_hooks_on_one_saved_tensor(self) -> None:
        x = leaf(3)
        y: Any = x.pow(2)
        y.grad_fn._raw_saved_self.register_hooks(lambda t: 2 * t, lambda t: t)
        with self.assertRaisesRegex(RuntimeError, "already been set"):
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
        y.sum().backward()
        self.assert_equal(x.grad, [12])

    def test_a_pack_hook_must_not_change_its_input(self) -> None:
        x: Any = leaf(3)
        y = x.pow(2)
        with self.assertRaisesRegex(RuntimeError, "pack hook is modifying its input in place"):
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t.mul_(2), lambda t: t)

    def test_saved_on_cpu_and_disabled_hooks(self) -> None:
        x = leaf(1, 2)
        with save_on_cpu():
            y = (x * x).sum()
        y.backward()
        self.assert_equal(x.grad, [2, 4])
        with (
            torch.autograd.graph.disable_saved_tensors_hooks("not here"),
            self.assertRaisesRegex(RuntimeError, "not here"),
            save_on_cpu(),
        ):
            pass

    def test_a_graph_dies_with_its_root(self) -> None:
        x = leaf(1)
        middle = x.exp()
        end = middle * middle
        alive = weakref.ref(middle)
        del middle
        end.sum().backward()
        del end
        gc.collect()
        self.assertIsNone(alive())

    # checkpoints, anomaly mode, grad modes

    def test_checkpoints_of_both_kinds_with_a_function_inside(self) -> None:
        for reentrant in (True, False):
            x, w = leaf(2), leaf(10)
            out = checkpoint(lambda x, w: product(x + 1, w).sin(), x, w, use_reentrant=reentrant)
            out.sum().backward()
            inner = torch.tensor([30.0], dtype=torch.double).cos()
            self.assert_equal(x.grad, 10 * inner)
            self.assert_equal(w.grad, 3 * inner)

    def test_checkpoint_within_a_checkpoint(self) -> None:
        def inner(t: Tensor) -> Any:
            return checkpoint(torch.sin, t, use_reentrant=False)

        x = leaf(1)
        checkpoint(lambda t: inner(t.exp()).exp(), x, use_reentrant=False).sum().backward()
        y = x.detach().requires_grad_()
        y.exp().sin().exp().sum().backward()
        self.assert_equal(x.grad, y.grad)

    def test_second_time_through_a_checkpoint(self) -> None:
        x = leaf(1)
        out: Any = checkpoint(torch.exp, x, use_reentrant=False)
        out.backward()
        with self.assertRaisesRegex(RuntimeError, SECOND_TIME):
            out.backward()

    def test_anomaly_mode_finds_nan(self) -> None:
        x = leaf(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                y = (x * 0).sqrt() * 0
                with self.assertRaisesRegex(RuntimeError, "nan values"):
                    y.backward()

    def test_grad_modes_nest(self) -> None:
        x = leaf(1)
        with torch.no_grad():
            self.assertFalse((x * 2).requires_grad)
            with torch.enable_grad():
                self.assertTrue((x * 2).requires_grad)
        with torch.inference_mode():
            y = x * 2
        with self.assertRaisesRegex(RuntimeError, "Inference tensors cannot be saved"):
            _ = x * y

    # threads

    def test_backward_in_threads_adds_up(self) -> None:
        x = leaf(1, 2)

        def work() -> None:
            for _ in range(5):
                (x * 2).sum().backward()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assert_equal(x.grad, [30, 30])

    def test_a_graph_of_another_thread(self) -> None:
        x, out, errors = leaf(2), [], []

        def build() -> None:
            out.append((x * x).sum())

        def run() -> None:
            out[0].backward()
            try:
                out[0].backward()
            except RuntimeError as error:
                errors.append(str(error))

        for work in (build, run):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        self.assert_equal(x.grad, [4])
        self.assertIn(SECOND_TIME, errors[0])

    # other kinds of tensors

    def test_complex_gradients_are_conjugate(self) -> None:
        z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.cdouble, requires_grad=True)
        (z * z.conj()).real.sum().backward()
        self.assert_equal(z.grad, 2 * z.detach())
        torch.view_as_real(z).pow(2).sum().backward()
        self.assert_equal(z.grad, 4 * z.detach())

    def test_sparse_gradients_accumulate(self) -> None:
        table = torch.nn.Embedding(4, 2, sparse=True)
        for rows in ([0, 1], [1, 3]):
            table(torch.tensor(rows)).sum().backward()
        grad = table.weight.grad
        assert grad is not None
        self.assertTrue(grad.is_sparse)
        self.assert_equal(grad.to_dense().sum(1), [2, 4, 0, 2])

    def test_nested_tensors(self) -> None:
        parts = [leaf(1, 2), leaf(3)]
        nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
        (nested * nested).values().sum().backward()
        self.assert_equal(parts[0].grad, [2, 4])


if __name__ == "__main__":
    unittest.main()
