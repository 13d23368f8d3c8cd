"""nn.RNN, nn.GRU, nn.LSTM and their cells, as the linear layers they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Uses
from quietgrad.capture.recurrence import GRU, LSTM, RELU, TANH, Kind, State, recurrence
from quietgrad.capture.registry import Call, rule
from quietgrad.capture.rules.linear import bias_factor, linear, weight_factor

# One step: projected input, hidden projection, previous state -> new state (hidden first).
Step = Callable[[Tensor, Callable[[Tensor], Tensor], State], State]


@rule(torch.lstm)
def lstm(call: Call, input: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All layers and directions of nn.LSTM, with or without projections."""
    output, (hidden, cell) = _run_layers(call, input, args, LSTM, _lstm_step)
    return output, hidden, cell


@rule(torch.gru)
def gru(call: Call, input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """All layers and directions of nn.GRU."""
    output, (hidden,) = _run_layers(call, input, args, GRU, _gru_step)
    return output, hidden


@rule(torch.rnn_tanh)
def rnn_tanh(call: Call, input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """All layers and directions of nn.RNN with tanh."""
    output, (hidden,) = _run_layers(call, input, args, TANH, _tanh_step)
    return output, hidden


@rule(torch.rnn_relu)
def rnn_relu(call: Call, input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """All layers and directions of nn.RNN with relu."""
    output, (hidden,) = _run_layers(call, input, args, RELU, _relu_step)
    return output, hidden


@rule(torch.lstm_cell)
def lstm_cell(call: Call, input: Tensor, hx: Sequence[Tensor], *weights: Tensor) -> State:
    """nn.LSTMCell."""
    return _one_step(call, input, tuple(hx), weights, _lstm_step)


@rule(torch.gru_cell)
def gru_cell(call: Call, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
    """nn.GRUCell."""
    return _one_step(call, input, (hx,), weights, _gru_step)[0]


@rule(torch.rnn_tanh_cell)
def rnn_tanh_cell(call: Call, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
    """nn.RNNCell with tanh."""
    return _one_step(call, input, (hx,), weights, _tanh_step)[0]


@rule(torch.rnn_relu_cell)
def rnn_relu_cell(call: Call, input: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
    """nn.RNNCell with relu."""
    return _one_step(call, input, (hx,), weights, _relu_step)[0]


def _run_layers(
    call: Call, input: Tensor, args: tuple[Any, ...], kind: Kind, step: Step
) -> tuple[Tensor, State]:
    if isinstance(args[0], Tensor) and args[0].dtype == torch.int64:  # sizes of packed steps
        raise call.refuse(
            "packed sequences do not keep the samples in a dimension of their own",
            "Pass the padded tensor and mask the loss instead",
            *next(part for part in args[2:] if isinstance(part, (list, tuple))),
        )
    hx, weights, has_biases, num_layers, dropout, training, bidirectional, batch_first = args
    states = _as_data(call, tuple(hx) if isinstance(hx, (tuple, list)) else (hx,))
    directions = 2 if bidirectional else 1
    per_cell = len(weights) // (num_layers * directions)
    sequence = input.transpose(0, 1) if batch_first else input
    finals: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            cell = weights[index * per_cell : (index + 1) * per_cell]
            initial = tuple(state[index] for state in states)
            steps, final = _run_direction(
                call,
                sequence,
                initial,
                cell,
                has_biases,
                kind,
                step,
                reverse=bool(direction),
                index=index,
            )
            outputs.append(steps)
            finals.append(final)
        sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and training and layer < num_layers - 1:
            sequence = F.dropout(sequence, dropout)
    final_states = tuple(torch.stack(column) for column in zip(*finals, strict=True))
    return sequence.transpose(0, 1) if batch_first else sequence, final_states


def _run_direction(
    call: Call,
    sequence: Tensor,
    state: State,
    cell: Sequence[Tensor],
    has_biases: bool,
    kind: Kind,
    step: Step,
    *,
    reverse: bool,
    index: int,
) -> tuple[Tensor, State]:
    w_ih, w_hh = cell[:2]
    b_ih, b_hh = cell[2:4] if has_biases else (None, None)
    projection = cell[-1] if len(cell) in (3, 5) else None
    projected = linear(call, sequence, w_ih, b_ih, label=f"{index} input")
    inputs = projected.flip(0) if reverse else projected
    if projection is None and _is_plain(call, projected, w_hh, b_hh):
        outputs, final = _recur(call, kind, inputs, state, w_hh, b_hh, f"{index} hidden")
        return outputs.flip(0) if reverse else outputs, final
    steps: list[Tensor] = []
    for gates in inputs.unbind(0):
        state = step(gates, lambda h: linear(call, h, w_hh, b_hh, label=f"{index} hidden"), state)
        if projection is not None:
            hidden = linear(call, state[0], projection, label=f"{index} projection")
            state = (hidden, *state[1:])
        steps.append(state[0])
    return torch.stack(steps[::-1] if reverse else steps), state


def _is_plain(call: Call, projected: Tensor, *weights: Tensor | None) -> bool:
    """Whether one function can run all steps: in one precision, with weights that are no data."""
    values = [call.value(weight) for weight in weights if weight is not None]
    return not any(v.requires_grad or v.dtype != projected.dtype for v in values)


def _recur(
    call: Call,
    kind: Kind,
    projected: Tensor,
    state: State,
    weight: Tensor,
    bias: Tensor | None,
    label: str,
) -> tuple[Tensor, State]:
    uses: Uses = [(weight, weight_factor), (bias, bias_factor)]
    site = call.site(uses, projected.shape, dims=2, label=label)
    values = call.value(weight), call.value(bias)
    return recurrence(kind, projected, state, *values, call.token, site)


def _as_data(call: Call, state: State) -> State:
    """A trainable initial state: every sample starts from its own copy."""
    return tuple(
        call.source(part, part.shape, f"state {i}") if call.is_managed(part) else part
        for i, part in enumerate(state)
    )


def _one_step(
    call: Call, input: Tensor, state: State, weights: tuple[Tensor, ...], step: Step
) -> State:
    state = _as_data(call, state)
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if len(weights) == 4 else (None, None)
    projected = linear(call, input, w_ih, b_ih, label="input")
    return step(projected, lambda h: linear(call, h, w_hh, b_hh, label="hidden"), state)


def _lstm_step(gates: Tensor, recur: Callable[[Tensor], Tensor], state: State) -> State:
    hidden, cell = state
    forget_and_more = gates + recur(hidden)
    i, f, g, o = forget_and_more.chunk(4, -1)
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
