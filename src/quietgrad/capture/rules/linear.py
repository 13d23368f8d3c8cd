"""Linear layers, weight ``[P, D]`` and bias ``[P]``, and products of any kind."""

from __future__ import annotations

from functools import partial
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.capture.call import Call, MakeFactor, Uses, as_computed, by_row, sum_to_shape
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import TorchFunction, rule
from quietgrad.capture.owners import OwnedLayout
from quietgrad.errors import SampleMixingError
from quietgrad.factors.base import Dense, Factor, to_float32
from quietgrad.factors.outer import Outer
from quietgrad.factors.routed import Routed


@rule(F.linear)
def linear(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None, *, label: str = ""
) -> Tensor:
    """``input @ weight.T + bias``."""
    if call.is_managed(input):
        with call.recapture():
            output = torch.matmul(input, weight if weight.ndim == 1 else weight.mT)
            return output if bias is None else output + bias
    if weight.ndim == 1:
        added = call.value(bias)
        uses: list[tuple[Tensor | None, MakeFactor]]
        uses = [(bias, partial(sum_to_shape, shape=bias.shape))] if bias is not None else []
        terms = _matmul_terms(input.ndim, 1)
        return _contract(call, *terms, [input, weight], lambda x, w: F.linear(x, w, added), uses)
    output = F.linear(input, call.value(weight), call.value(bias))
    saved = [as_computed(input, output)] if call.is_managed(weight) else []
    uses = [(weight, weight_factor), _added(call, bias, output)]
    return call.watch(output, uses, saved=saved, dims=output.ndim - 1, label=label)


@rule(torch.addmm, Tensor.addmm)
def addmm(
    call: Call, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * input + alpha * mat1 @ mat2``: a linear layer when mat2 is the weight ``[D, P]``."""
    if call.is_managed(mat1) or beta != 1 or alpha != 1:
        return _add_product(call, input, "ij,jk->ik", [mat1, mat2], beta, alpha)
    output = torch.addmm(call.value(input), mat1, call.value(mat2))
    saved = [as_computed(mat1, output)] if call.is_managed(mat2) else []
    uses: Uses = [(mat2, _transposed_weight_factor), _added(call, input, output)]
    return call.watch(output, uses, saved=saved, dims=1)


def _added(call: Call, bias: Tensor | None, output: Tensor) -> tuple[Tensor | None, MakeFactor]:
    """Something added to the output of a linear layer, and how its factor is made."""
    if bias is None or bias.shape == output.shape[-1:]:
        return bias, bias_factor
    aligned = zip(reversed(bias.shape), reversed(output.shape), strict=False)
    if bias.ndim > output.ndim or any(size not in (1, full) for size, full in aligned):
        raise call.refuse(
            f"a bias of shape {tuple(bias.shape)} has a row for every position of every sample",
            "Use a bias with one entry for each output",
            bias,
        )
    return bias, partial(sum_to_shape, shape=bias.shape)


@by_row
def bias_factor(layout: Layout, grad: Tensor, *_: Tensor) -> Factor:
    """The gradient of something added along the last dimension."""
    positions = layout.split(grad, 1)
    if positions.shape[1] == 1:
        return Dense(positions.squeeze(1))
    dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
    return Dense(positions.sum(1, dtype=dtype))


@by_row
def weight_factor(layout: Layout, grad: Tensor, input: Tensor) -> Factor:
    """The gradient of ``weight`` in ``input @ weight.T``."""
    return Outer(layout.split(grad, 1), layout.split(input, 1))


@by_row
def _transposed_weight_factor(layout: Layout, grad: Tensor, input: Tensor) -> Factor:
    return Outer(layout.split(input, 1), layout.split(grad, 1))


@rule(*(f for f in (getattr(F, "grouped_mm", None), getattr(torch, "_grouped_mm", None)) if f))
def grouped_mm(
    call: Call,
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Rows ``[N, D]`` in groups that end at ``offs[E]``, each times its matrix of ``[E, D, P]``."""
    is_routed = mat_a.ndim == 2 and mat_b.ndim == 3 and offs is not None and bias is None
    if not is_routed or call.is_managed(mat_a):
        raise call.refuse(
            "a grouped product is captured only of 2-D data with trainable 3-D weights, by offsets "
            "and without a bias",
            "Write it as a loop over the groups",
            mat_a,
            mat_b,
        )
    assert offs is not None
    output = call.function(mat_a, call.value(mat_b), offs=offs, out_dtype=out_dtype)
    places = torch.arange(len(mat_a), device=offs.device)
    ids = torch.searchsorted(offs.contiguous(), places, right=True)
    ids = ids.where(ids < len(offs), -1)
    make = partial(_grouped_factor, shape=mat_b.shape)
    return call.watch(output, [(mat_b, make)], saved=[as_computed(mat_a, output), ids], dims=1)


def _grouped_factor(
    layout: Layout, grad: Tensor, input: Tensor, ids: Tensor, *, shape: torch.Size
) -> Factor:
    places = layout.split(ids + 1, 0) - 1
    return Routed(places, layout.split(input, 1), layout.split(grad, 1), shape)


# Letters that stand for the sample and for its rows; the others are free for equations.
_SAMPLE, _ROW = "Z", "Y"
_FREE = [letter for letter in ascii_letters if letter not in (_SAMPLE, _ROW)]


@rule(torch.matmul, torch.mm, torch.bmm, torch.mv, takes_complex=True)
@rule(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.__matmul__, takes_complex=True)
def matmul(call: Call, input: Tensor, other: Tensor) -> Tensor:
    """A matrix product, with broadcasting over leading dimensions."""
    return _contract(call, *_matmul_terms(input.ndim, other.ndim), [input, other], call.function)


@rule(Tensor.__rmatmul__, takes_complex=True)
def reflected_matmul(call: Call, input: Tensor, other: Tensor) -> Tensor:
    """``other @ input``."""
    terms = _matmul_terms(other.ndim, input.ndim)
    return _contract(call, *terms, [other, input], torch.matmul)


@rule(torch.baddbmm, Tensor.baddbmm)
def baddbmm(
    call: Call, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * input + alpha * batch1 @ batch2``."""
    return _add_product(call, input, "bij,bjk->bik", [batch1, batch2], beta, alpha)


@rule(torch.bilinear)
def bilinear(
    call: Call, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``input1[i] * weight[o, i, j] * input2[j] + bias[o]``."""
    if call.is_managed(input1) or call.is_managed(input2):
        with call.recapture():
            output = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
            return output if bias is None else output + bias
    output = torch.bilinear(input1, input2, call.value(weight), call.value(bias))
    rows = "".join(_FREE[3 : output.ndim + 2])
    terms, output_term = [f"{rows}a", f"{rows}b", "cab"], f"{rows}c"
    make = partial(_operand_factor, index=2, terms=terms, output_term=output_term, is_derived=True)
    saved = [input1, input2, weight]
    uses: Uses = [(weight, make), (bias, bias_factor)]
    return call.watch(output, uses, saved=saved, dims=output.ndim - 1)


@rule(torch.einsum, takes_complex=True)
def einsum(call: Call, equation: Any, *operands: Any) -> Tensor:
    """Any einsum; a letter twice in one operand takes its diagonal first."""
    if not isinstance(equation, str):
        raise call.refuse("einsum's sublist format is not supported", "Use a string", *operands)
    tensors = list(operands[0]) if isinstance(operands[0], (list, tuple)) else list(operands)
    terms, output = _parse(call, equation, tensors)
    for place, term in enumerate(terms):
        letters = "".join(dict.fromkeys(term))
        if letters != term:
            with call.recapture():
                tensors[place] = torch.einsum(f"{term}->{letters}", tensors[place])
            terms[place] = letters
    run = partial(torch.einsum, f"{','.join(terms)}->{output}")
    return _contract(call, terms, output, tensors, run)


@rule(torch.tensordot)
def tensordot(call: Call, a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> Tensor:
    """A product summed over pairs of dimensions, or over so many of the last and the first."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        dims = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    lefts, rights = ([d] if isinstance(d, int) else list(d) for d in dims)
    left, right = _FREE[: a.ndim], _FREE[a.ndim : a.ndim + b.ndim]
    for i, j in zip(lefts, rights, strict=True):
        right[j] = left[i]
    summed = {left[i] for i in lefts}
    kept = [letter for letter in (*left, *right) if letter not in summed]
    terms, output = ["".join(left), "".join(right)], "".join(kept)
    return _contract(call, terms, output, [a, b], partial(torch.tensordot, dims=dims))


@rule(torch.inner, Tensor.inner)
def inner(call: Call, input: Tensor, other: Tensor) -> Tensor:
    """A product summed over the last dimension of both."""
    with call.recapture():
        if input.ndim == 0 or other.ndim == 0:
            return input * other
        product: Tensor = torch.tensordot(input, other, dims=([-1], [-1]))
        return product


@rule(torch.outer, Tensor.outer, torch.ger, Tensor.ger, takes_complex=True)
def outer(call: Call, input: Tensor, vec2: Tensor) -> Tensor:
    """All products of two vectors."""
    return _contract(call, ["a", "b"], "ab", [input, vec2], torch.outer)


@rule(torch.linalg.multi_dot, torch.chain_matmul)
def multi_dot(call: Call, *matrices: Any, out: Any = None) -> Tensor:
    """A product of matrices, from the left: samples are mostly the rows of the first."""
    given = matrices[0] if isinstance(matrices[0], (list, tuple)) else matrices
    with call.recapture():
        product: Tensor = given[0]
        for matrix in given[1:]:
            product = product @ matrix
        return product


def _contract(
    call: Call,
    terms: list[str],
    output_term: str,
    operands: list[Tensor],
    run: TorchFunction,
    uses: Uses = (),
) -> Tensor:
    """``run`` of the operands' values, a product by these terms; perhaps with something added."""
    operands = [call.own_copies(operand) for operand in operands]
    values = [call.value(operand) for operand in operands]
    output: Tensor = run(*values)
    make = partial(_operand_factor, terms=terms, output_term=output_term)
    saved, factored = values, _use_operands(make, operands)
    return call.watch(output, [*factored, *uses], saved=saved, dims=output.ndim, takes_complex=True)


def _use_operands(make: MakeFactor, operands: list[Tensor]) -> list[tuple[Tensor, MakeFactor]]:
    return [
        (operand, partial(make, index=index, is_derived=not isinstance(operand, nn.Parameter)))
        for index, operand in enumerate(operands)
    ]


def _add_product(
    call: Call, addend: Tensor, equation: str, operands: list[Tensor], beta: float, alpha: float
) -> Tensor:
    """``beta * addend + alpha * product``, as torch computes it; the addend may be broadcast."""
    operands = [call.own_copies(operand) for operand in operands]
    values = [call.value(operand) for operand in operands]
    output: Tensor = call.function(call.value(addend), *values, beta=beta, alpha=alpha)
    inputs, output_term = equation.split("->")
    make = partial(_operand_factor, terms=inputs.split(","), output_term=output_term)
    uses: Uses = [
        *((operand, _scaled(own, alpha)) for operand, own in _use_operands(make, operands)),
        (addend, _scaled(partial(sum_to_shape, shape=addend.shape), beta)),
    ]
    return call.watch(output, uses, saved=values, dims=output.ndim, takes_complex=True)


def _scaled(make: MakeFactor, scale: float) -> MakeFactor:
    """The factor of something that is multiplied by a number."""
    if scale == 1:
        return make
    return lambda layout, grad, *saved: make(layout, scale * to_float32(grad), *saved)


def _matmul_terms(left: int, right: int) -> tuple[list[str], str]:
    lead = max(left, right, 2) - 2
    letters, (row, inner, col) = _FREE[3 : 3 + lead], _FREE[:3]
    leading = "".join(letters)
    first = leading[lead - max(left - 2, 0) :] + (row if left > 1 else "") + inner
    second = leading[lead - max(right - 2, 0) :] + inner + (col if right > 1 else "")
    return [first, second], leading + (row if left > 1 else "") + (col if right > 1 else "")


def _rename(equation: str) -> str:
    """The equation with other letters for those that stand for samples and rows.

    The order of letters is kept, since it is that of an output that is not given.
    """
    letters = sorted({letter for letter in equation if letter.isalpha()})
    if not {_SAMPLE, _ROW} & set(letters):
        return equation
    names = dict(zip(letters, sorted(_FREE), strict=False))
    return "".join(names.get(letter, letter) for letter in equation)


def _parse(call: Call, equation: str, operands: list[Tensor]) -> tuple[list[str], str]:
    """Equation with ellipses spelled out and an explicit output."""
    equation = _rename(equation.replace(" ", ""))
    sides = equation.split("->")
    inputs = sides[0].split(",")
    unused = [letter for letter in _FREE if letter not in equation]
    missing = [
        o.ndim - len(t.replace("...", "")) if "..." in t else 0
        for o, t in zip(operands, inputs, strict=True)
    ]
    ellipsis = "".join(unused[: max(missing)])
    terms = [
        t.replace("...", ellipsis[len(ellipsis) - m :])
        for t, m in zip(inputs, missing, strict=True)
    ]
    letters = "".join(inputs).replace(".", "")
    implicit = "..." * ("..." in sides[0]) + "".join(
        sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    )
    output = (sides[1] if len(sides) > 1 else implicit).replace("...", ellipsis)
    return terms, output


def _operand_factor(
    layout: Layout,
    grad: Tensor,
    *operands: Tensor,
    index: int,
    terms: list[str],
    output_term: str,
    is_derived: bool,
) -> Factor:
    """The gradient of one operand: all others contracted with the output's gradient."""
    target, shape = terms[index], operands[index].shape
    sizes = _sizes(operands, terms)
    others = [
        _drop_broadcast(operand.conj(), term, sizes)
        for position, (operand, term) in enumerate(zip(operands, terms, strict=True))
        if position != index
    ]
    kept = "".join(c for c, n in zip(target, shape, strict=True) if n == sizes[c])
    if not isinstance(layout, OwnedLayout) and layout.batch > 1 and output_term[layout.dim] in kept:
        if not is_derived:
            raise SampleMixingError(
                "a parameter has the sample dimension itself in a product: it holds something of "
                "each sample and cannot be trained privately"
            )
        # Rows that were made for the samples, such as a stack of copies: each has its own.
        layout = OwnedLayout.of(layout, grad.shape, grad.device)
    if isinstance(layout, OwnedLayout):
        rows = _OwnedRows(layout, output_term)
        gradient, term = rows.mark(grad, output_term)
        pairs = [rows.mark(tensor, t) for tensor, t in others]
        routed = [letter for letter in kept if letter in rows.letters]
        is_real = not grad.is_complex()
        if len(routed) == 1 and kept[0] == routed[0] and is_real:
            factor = _as_outer(pairs, gradient, term, kept[1:], shape[1:])
            if isinstance(factor, Outer) and len(shape) == 3:
                places = rows.places(routed[0])
                each = factor.positions // places.shape[1]
                places = places.repeat_interleave(each, 1)
                return Routed(places, factor.rows, factor.cols, shape)
        pairs += [rows.choose(letter, sizes[letter], gradient) for letter in routed]
        is_outer = is_real and not routed
        factor = _as_outer(pairs, gradient, term, kept, shape) if is_outer else None
        return factor or _as_dense(pairs, gradient, term, target, shape, sizes)
    gradient, term = _mark_samples(layout, grad, output_term, output_term, batch_of_one=True)
    pairs = [_mark_samples(layout, tensor, t, output_term) for tensor, t in others]
    factor = None if grad.is_complex() else _as_outer(pairs, gradient, term, kept, shape)
    return factor or _as_dense(pairs, gradient, term, target, shape, sizes)


def _as_outer(
    pairs: list[tuple[Tensor, str]], grad: Tensor, term: str, kept: str, shape: torch.Size
) -> Factor | None:
    """Keep it factored where a matrix meets one tensor: no letter is common to all three."""
    if len(pairs) != 1:
        return None
    data, data_term = pairs[0]
    outer = "".join(c for c in kept if c in term)
    inner = "".join(c for c in kept if c in data_term)
    shared = "".join(c for c in term if c in data_term and c != _SAMPLE)
    exact = set(data_term) == {_SAMPLE, *shared, *inner} and set(term) == {_SAMPLE, *shared, *outer}
    if not exact or set(outer) & set(inner) or kept not in (outer + inner, inner + outer):
        return None
    grad_rows = _as_rows(grad, term, shared, outer)
    data_rows = _as_rows(data, data_term, shared, inner)
    first, second = (grad_rows, data_rows) if kept == outer + inner else (data_rows, grad_rows)
    return Outer(first, second, shape=shape)


def _as_rows(tensor: Tensor, term: str, shared: str, own: str) -> Tensor:
    ordered = torch.einsum(f"{term}->{_SAMPLE}{shared}{own}", tensor)
    sizes = ordered.shape[1 : 1 + len(shared)], ordered.shape[1 + len(shared) :]
    return ordered.reshape(ordered.shape[0], *(size.numel() for size in sizes))


def _as_dense(
    pairs: list[tuple[Tensor, str]],
    grad: Tensor,
    term: str,
    target: str,
    shape: torch.Size,
    sizes: dict[str, int],
) -> Factor:
    inputs = [*(t for _, t in pairs), term]
    present = [c for c in target if any(c in t for t in inputs)]
    kept = [c for c, n in zip(target, shape, strict=True) if c in present and n == sizes[c]]
    equation = f"{','.join(inputs)}->{_SAMPLE}{''.join(kept)}"
    grads = torch.einsum(equation, *(to_float32(t) for t, _ in pairs), to_float32(grad))
    # A letter that only the parameter has is summed over: its gradient is the same all along.
    for position, letter in enumerate(target):
        if letter not in kept:
            grads = grads.unsqueeze(1 + position)
    return Dense(grads.expand(-1, *shape).contiguous())


def _mark_samples(
    layout: Layout, tensor: Tensor, term: str, output_term: str, *, batch_of_one: bool = False
) -> tuple[Tensor, str]:
    """Split the dimension that holds the samples into sample and row, in tensor and term."""
    if layout.batch == 1:
        return (tensor.unsqueeze(0), _SAMPLE + term) if batch_of_one else (tensor, term)
    letter = output_term[layout.dim]
    if letter not in term:
        return tensor, term
    marks = _SAMPLE + _ROW if layout.major else _ROW + _SAMPLE
    count = tensor.shape[term.index(letter)] // layout.batch
    split = (layout.batch, count) if layout.major else (count, layout.batch)
    return tensor.unflatten(term.index(letter), split), term.replace(letter, marks)


class _OwnedRows:
    """Rows of samples in any order: those of a sample become adjacent, in all tensors alike.

    Attributes:
        letters: of the dimensions that the rows run over.
    """

    def __init__(self, layout: OwnedLayout, output_term: str) -> None:
        self.letters = "".join(output_term[dim] for dim in layout.dims)
        self._layout, self._output = layout, output_term

    def mark(self, tensor: Tensor, term: str) -> tuple[Tensor, str]:
        """A tensor with sample and row in the place of these letters, if it has any of them."""
        own = [letter for letter in self.letters if letter in term]
        if self.letters and not own:
            return tensor, term
        tensor = tensor.where(self._mask(term), 0)
        rows = tensor.movedim([term.index(c) for c in own], list(range(len(own))))
        rows = rows[tuple(self._index(c) for c in own)] if own else tensor.unsqueeze(0)
        rest = "".join(letter for letter in term if letter not in own)
        return self._layout.gather(rows), _SAMPLE + _ROW + rest

    def _mask(self, term: str) -> Tensor:
        """Where a tensor meets some gradient."""
        if not self._layout.is_touched.ndim:
            return self._layout.is_touched
        mask = self._layout.is_touched
        known = self._output[: mask.ndim]  # it may be known of the first dimensions only
        shared = "".join(letter for letter in known if letter in term)
        others = [dim for dim, letter in enumerate(known) if letter not in term]
        mask = mask.sum(others).bool() if others else mask
        order = [shared.index(letter) for letter in term if letter in shared]
        sizes = iter(mask.permute(order).shape)
        return mask.permute(order).reshape([next(sizes) if c in shared else 1 for c in term])

    def places(self, letter: str) -> Tensor:
        """``[B, K]``: of each row its place in one dimension; -1 where there is no row."""
        return self._layout.gather(self._index(letter) + 1) - 1

    def choose(self, letter: str, size: int, like: Tensor) -> tuple[Tensor, str]:
        """One where a row has this place in a dimension, zero elsewhere."""
        chosen = F.one_hot(self.places(letter) + 1, size + 1)[..., 1:]
        return chosen.to(like.dtype), _SAMPLE + _ROW + letter

    def _index(self, letter: str) -> Tensor:
        return self._layout.index(self._layout.dims[self.letters.index(letter)])


def _sizes(operands: tuple[Tensor, ...], terms: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for operand, term in zip(operands, terms, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return sizes


def _drop_broadcast(tensor: Tensor, term: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """Without the dimensions of size one that are broadcast against larger ones."""
    for letter in term:
        if tensor.shape[term.index(letter)] == 1 and sizes[letter] > 1:
            tensor, term = tensor.squeeze(term.index(letter)), term.replace(letter, "")
    return tensor, term
