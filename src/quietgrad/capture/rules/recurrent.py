"""nn.RNN, nn.GRU, nn.LSTM and their cells, as the linear layers they are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from quietgrad.capture.call import Call, Uses
from quietgrad.capture.operations import TorchFunction, rule
from quietgrad.capture.rules.linear import bias_factor, linear, weight_factor

if TYPE_CHECKING:
    from quietgrad.capture.tape import Site

State = tuple[Tensor, ...]
"""The hidden state; for an LSTM followed by the cell."""

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Kind(ABC):
    """One kind of recurrent layer: what it does in a step, and the derivative of that.

    Tensors of one step have the samples first. Results are written where they are to stay, for
    there are many steps. What the backward needs of one is ``kept`` times as wide as the state.
    """

    kept: int

    @abstractmethod
    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        """Write the state ``after`` a step, and to ``keep`` what its derivative needs.

        ``projected`` is the projected input, ``recurrent`` the projected hidden state, which may be
        overwritten.
        """

    @abstractmethod
    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        """From the gradients of the state after a step to those of the state before it.

        Writes the gradients of both projections. Returns what reaches the state other than by the
        recurrent weights; for the hidden state it may be a scalar zero.
        """


class Plain(Kind):
    """nn.RNN, with tanh or relu."""

    kept = 1

    def __init__(
        self,
        activate: Callable[[Tensor], Tensor],
        derive: Callable[[Tensor, Tensor, Tensor], object],
    ) -> None:
        self._activate, self._derive = activate, derive

    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        keep.copy_(self._activate(recurrent.add_(projected)))
        after[0].copy_(keep)

    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        self._derive(grads[0], keep, projected)
        recurrent.copy_(projected)
        return (grads[0].new_zeros(()),)


class Gru(Kind):
    """nn.GRU: reset gate, update gate, candidate; of the recurrent part the last third is kept."""

    kept = 4

    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        width = before[0].shape[1]
        reset, update, candidate, share = keep.split(width, 1)
        gates = keep[:, : 2 * width]
        torch.add(projected[:, : 2 * width], recurrent[:, : 2 * width], out=gates).sigmoid_()
        share.copy_(recurrent[:, 2 * width :])
        torch.addcmul(projected[:, 2 * width :], reset, share, out=candidate).tanh_()
        torch.lerp(candidate, before[0], update, out=after[0])

    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        (grad,) = grads
        width = grad.shape[1]
        reset, update, candidate, share = keep.split(width, 1)
        by_reset, by_update, by_candidate = projected.split(width, 1)
        kept = grad * update
        _sigmoid_backward((before[0] - candidate).mul_(grad), update, grad_input=by_update)
        _tanh_backward(grad - kept, candidate, grad_input=by_candidate)
        _sigmoid_backward(by_candidate * share, reset, grad_input=by_reset)
        recurrent[:, : 2 * width].copy_(projected[:, : 2 * width])
        torch.mul(by_candidate, reset, out=recurrent[:, 2 * width :])
        return (kept,)


class Lstm(Kind):
    """nn.LSTM: input gate, forget gate, candidate, output gate; and the activated cell."""

    kept = 5

    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        width = before[0].shape[1]
        torch.add(projected, recurrent, out=keep[:, : 4 * width])
        enter, forget, candidate, leave, shown = keep.split(width, 1)
        keep[:, : 2 * width].sigmoid_()
        candidate.tanh_()
        leave.sigmoid_()
        torch.mul(forget, before[1], out=after[1]).addcmul_(enter, candidate)
        torch.tanh(after[1], out=shown)
        torch.mul(leave, shown, out=after[0])

    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        hidden, cell = grads
        width = hidden.shape[1]
        enter, forget, candidate, leave, shown = keep.split(width, 1)
        by_enter, by_forget, by_candidate, by_leave = projected.split(width, 1)
        cell = torch.ops.aten.tanh_backward(hidden * leave, shown).add_(cell)
        _sigmoid_backward(hidden * shown, leave, grad_input=by_leave)
        _sigmoid_backward(cell * candidate, enter, grad_input=by_enter)
        _sigmoid_backward(cell * before[1], forget, grad_input=by_forget)
        _tanh_backward(cell * enter, candidate, grad_input=by_candidate)
        recurrent.copy_(projected)
        return hidden.new_zeros(()), cell * forget


def _derive_tanh(grad: Tensor, output: Tensor, out: Tensor) -> None:
    _tanh_backward(grad, output, grad_input=out)


def _derive_relu(grad: Tensor, output: Tensor, out: Tensor) -> None:
    torch.mul(grad, output > 0, out=out)


TANH, RELU = Plain(torch.tanh_, _derive_tanh), Plain(torch.relu_, _derive_relu)
GRU, LSTM = Gru(), Lstm()


class _Recurrence(torch.autograd.Function):
    """All steps of one direction of a layer: projected inputs ``[T, B, gates * H]`` to states.

    The weight of the hidden state and the bias added to its projection are cut off from autograd;
    ``site`` receives the gradient of the projected hidden states. In step ``t`` only the first
    ``sizes[t]`` sequences go on; the state of the others stays.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: Kind,
        sizes: Sequence[int],
        projected: Tensor,
        token: Tensor,
        site: Site | None,
        weight: Tensor,
        bias: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        steps, batch = projected.shape[:2]
        width = weight.shape[1]
        keep = projected.new_empty(steps, batch, kind.kept * width)
        states = tuple(projected.new_empty(steps + 1, batch, width) for _ in state)
        for steps_of, initial in zip(states, state, strict=True):
            steps_of[0].copy_(initial)
        added = projected.new_zeros(()) if bias is None else bias
        recurrent, transposed = projected.new_empty(batch, len(weight)), weight.t()
        for step, size in enumerate(sizes):
            torch.addmm(added, states[0][step, :size], transposed, out=recurrent[:size])
            before, after = (tuple(s[i, :size] for s in states) for i in (step, step + 1))
            kind.forward(projected[step, :size], recurrent[:size], before, after, keep[step, :size])
            if size < batch:
                for state_of in states:
                    state_of[step + 1, size:].copy_(state_of[step, size:])
        ctx.kind, ctx.site, ctx.sizes = kind, site, sizes
        ctx.save_for_backward(weight, keep, *states)
        ctx.set_materialize_grads(False)
        hidden, *cells = states
        return hidden[1:].clone(), *(cell[-1].clone() for cell in cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kind: Kind = ctx.kind
        sizes: Sequence[int] = ctx.sizes
        weight, keep, *states = ctx.saved_tensors
        inputs = (states[0][:-1],)
        if all(grad is None for grad in grads):
            if ctx.site is not None:
                ctx.site.receive(None, inputs)
            return (None,) * (7 + len(states))
        steps, batch = keep.shape[:2]
        none = torch.zeros_like(states[0][0])
        later = [none, *(none if grad is None else grad for grad in grads[1:])]
        projected = keep.new_zeros(steps, batch, len(weight))
        recurrent = torch.zeros_like(projected)
        for step in reversed(range(steps)):
            size = sizes[step]
            arriving = later[0] if grads[0] is None else later[0] + grads[0][step]
            before = tuple(state[step, :size] for state in states)
            current = arriving[:size], *(grad[:size] for grad in later[1:])
            rest = kind.backward(
                keep[step, :size],
                before,
                current,
                projected[step, :size],
                recurrent[step, :size],
            )
            now = [torch.addmm(rest[0], recurrent[step, :size], weight), *rest[1:]]
            held = (arriving[size:], *(grad[size:] for grad in later[1:]))
            later = now if size == batch else list(map(torch.cat, zip(now, held, strict=True)))
        if ctx.site is not None:
            ctx.site.receive(recurrent, inputs)
        return (None, None, projected, None, None, None, None, *later)


# One step: projected input, hidden projection, previous state -> new state (hidden first).
Step = Callable[[Tensor, Callable[[Tensor], Tensor], State], State]


def _register(
    kind: Kind, step: Step, layers: TorchFunction, cell: TorchFunction, *, has_cell: bool = False
) -> None:
    """The rules for nn.LSTM, GRU or RNN, all layers and directions, and for the single cell."""

    @rule(layers)
    def run(call: Call, input: Tensor, *args: Any) -> tuple[Tensor, ...]:
        output, states = _run_layers(call, input, args, kind, step)
        return output, *states

    @rule(cell)
    def run_cell(call: Call, input: Tensor, hx: Any, *weights: Tensor) -> Any:
        state = _run_cell(call, input, tuple(hx) if has_cell else (hx,), weights, step)
        return state if has_cell else state[0]


class _Packing:
    """Sequences of unequal length, the longest first: step by step, or padded ``[T, B, ...]``.

    Args:
        sizes: how many sequences have a step ``t``, for each ``t``.
    """

    def __init__(self, sizes: Tensor) -> None:
        self.sizes: list[int] = sizes.tolist()
        places = torch.arange(self.sizes[0], device="cpu")
        self._is_step = places < sizes[:, None]
        self._lengths = self._is_step.sum(0)
        starts = sizes.cumsum(0) - sizes
        self._rows = torch.where(self._is_step, starts[:, None] + places, int(sizes.sum()))

    def pad(self, packed: Tensor) -> Tensor:
        """``[rows, ...]`` as ``[T, B, ...]``, with zeros behind the ends."""
        return torch.cat([packed, packed.new_zeros(1, *packed.shape[1:])])[self._rows]

    def pack(self, padded: Tensor) -> Tensor:
        """``[T, B, ...]`` as ``[rows, ...]``."""
        return padded[self._is_step.to(padded.device)]

    def reverse(self, padded: Tensor) -> Tensor:
        """Each sequence from its own end to its beginning."""
        steps = torch.arange(len(self.sizes), device="cpu")[:, None]
        turned = torch.where(self._is_step, self._lengths - 1 - steps, steps)
        return padded[turned, torch.arange(self.sizes[0], device="cpu")]


def _run_layers(
    call: Call, input: Tensor, args: tuple[Any, ...], kind: Kind, step: Step
) -> tuple[Tensor, State]:
    (input,) = _as_data(call, (input,), "input")
    if isinstance(args[0], Tensor) and args[0].dtype == torch.int64:  # sizes of packed steps
        packing = _Packing(args[0].cpu())
        sequence, args = packing.pad(input), (*args[1:], False)
    else:
        packing, sequence = None, input.transpose(0, 1) if args[-1] else input
    hx, weights, has_biases, num_layers, dropout, training, bidirectional, batch_first = args
    states = _as_data(call, tuple(hx) if isinstance(hx, (tuple, list)) else (hx,))
    directions = 2 if bidirectional else 1
    per_cell = len(weights) // (num_layers * directions)
    finals: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            cell = weights[index * per_cell : (index + 1) * per_cell]
            initial = tuple(state[index] for state in states)
            run = _Direction(call, cell, has_biases, kind, step, index)
            steps, final = run(sequence, initial, packing, reverse=direction == 1)
            outputs.append(steps)
            finals.append(final)
        sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and training and layer < num_layers - 1:
            sequence = _drop(sequence, dropout, packing)
    final_states = tuple(torch.stack(column) for column in zip(*finals, strict=True))
    if packing is not None:
        return packing.pack(sequence), final_states
    return sequence.transpose(0, 1) if batch_first else sequence, final_states


def _drop(sequence: Tensor, rate: float, packing: _Packing | None) -> Tensor:
    """Dropout between layers, drawn for as many entries as torch draws."""
    if packing is None:
        return F.dropout(sequence, rate)
    return packing.pad(F.dropout(packing.pack(sequence), rate))


class _Direction:
    """One direction of one layer."""

    def __init__(
        self,
        call: Call,
        cell: Sequence[Tensor],
        has_biases: bool,
        kind: Kind,
        step: Step,
        index: int,
    ) -> None:
        self._call, self._kind, self._step, self._index = call, kind, step, index
        self._w_ih, self._w_hh = cell[:2]
        biases: Sequence[Tensor | None] = cell[2:4] if has_biases else (None, None)
        self._b_ih, self._b_hh = biases
        self._projection = cell[-1] if len(cell) in (3, 5) else None

    def __call__(
        self, sequence: Tensor, state: State, packing: _Packing | None, *, reverse: bool
    ) -> tuple[Tensor, State]:
        """All hidden states, and the last state."""

        def turn(steps: Tensor) -> Tensor:
            if not reverse:
                return steps
            return steps.flip(0) if packing is None else packing.reverse(steps)

        label = f"{self._index} input"
        projected = turn(linear(self._call, sequence, self._w_ih, self._b_ih, label=label))
        sizes = [projected.shape[1]] * len(projected) if packing is None else packing.sizes
        is_plain = _is_plain(self._call, projected, self._w_hh, self._b_hh)
        run = self._run_at_once if self._projection is None and is_plain else self._run_by_steps
        outputs, state = run(projected, sizes, state)
        return turn(outputs), state

    def _run_at_once(
        self, inputs: Tensor, sizes: Sequence[int], state: State
    ) -> tuple[Tensor, State]:
        call, w_hh, b_hh = self._call, self._w_hh, self._b_hh
        uses: Uses = [(w_hh, weight_factor), (b_hh, bias_factor)]
        site = call.site(uses, inputs.shape, dims=2, label=f"{self._index} hidden")
        apply: Any = _Recurrence.apply
        values = call.value(w_hh), call.value(b_hh)
        outputs, *cells = apply(self._kind, sizes, inputs, call.token, site, *values, *state)
        return outputs, (outputs[-1], *cells)

    def _run_by_steps(
        self, inputs: Tensor, sizes: Sequence[int], state: State
    ) -> tuple[Tensor, State]:
        steps: list[Tensor] = []
        for gates, size in zip(inputs.unbind(0), sizes, strict=True):
            before = state
            state = self._step(gates[:size], self._recur, tuple(part[:size] for part in state))
            if self._projection is not None:
                label = f"{self._index} projection"
                state = (linear(self._call, state[0], self._projection, label=label), *state[1:])
            if size < len(before[0]):
                pairs = zip(state, before, strict=True)
                state = tuple(torch.cat([now, held[size:]]) for now, held in pairs)
            steps.append(state[0])
        return torch.stack(steps), state

    def _recur(self, hidden: Tensor) -> Tensor:
        label = f"{self._index} hidden"
        return linear(self._call, hidden, self._w_hh, self._b_hh, label=label)


def _is_plain(call: Call, projected: Tensor, *weights: Tensor | None) -> bool:
    """Whether one function can run all steps: in one precision, with weights that are no data."""
    values = [call.value(weight) for weight in weights if weight is not None]
    return not any(v.requires_grad or v.dtype != projected.dtype for v in values)


def _as_data(call: Call, state: State, label: str = "state") -> State:
    """A trainable initial state, or input: every sample starts from its own copy."""
    return tuple(
        call.source(part, part.shape, f"{label} {i}") if call.is_managed(part) else part
        for i, part in enumerate(state)
    )


def _run_cell(
    call: Call, input: Tensor, state: State, weights: tuple[Tensor, ...], step: Step
) -> State:
    state, (input,) = _as_data(call, state), _as_data(call, (input,), "input")
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if len(weights) == 4 else (None, None)
    projected = linear(call, input, w_ih, b_ih, label="input")
    return step(projected, lambda h: linear(call, h, w_hh, b_hh, label="hidden"), state)


def _lstm_step(gates: Tensor, recur: Callable[[Tensor], Tensor], state: State) -> State:
    hidden, cell = state
    i, f, g, o = (gates + recur(hidden)).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru_step(gates: Tensor, recur: Callable[[Tensor], Tensor], state: State) -> State:
    (hidden,) = state
    in_r, in_z, in_n = gates.chunk(3, -1)
    rec_r, rec_z, rec_n = recur(hidden).chunk(3, -1)
    reset, update = (in_r + rec_r).sigmoid(), (in_z + rec_z).sigmoid()
    candidate = (in_n + reset * rec_n).tanh()
    return (candidate + update * (hidden - candidate),)


def _tanh_step(gates: Tensor, recur: Callable[[Tensor], Tensor], state: State) -> State:
    return ((gates + recur(state[0])).tanh(),)


def _relu_step(gates: Tensor, recur: Callable[[Tensor], Tensor], state: State) -> State:
    return ((gates + recur(state[0])).relu(),)


_register(LSTM, _lstm_step, torch.lstm, torch.lstm_cell, has_cell=True)
_register(GRU, _gru_step, torch.gru, torch.gru_cell)
_register(TANH, _tanh_step, torch.rnn_tanh, torch.rnn_tanh_cell)
_register(RELU, _relu_step, torch.rnn_relu, torch.rnn_relu_cell)
