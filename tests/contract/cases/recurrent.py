"""nn.LSTM, nn.GRU, nn.RNN and their cells, as torch has them."""

import torch
from torch import nn, randn, zeros

from .table import B, Net, case, score

_LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn-tanh": nn.RNN,
    "rnn-relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}


def _sequence(name, make, length=7, **options):
    """A recurrent layer; its output and last states all count."""

    def build():
        layer = make(5, 3, **options)

        def forward(m, x):
            if layer.batch_first:
                return _flat(len(x), *m.layer(x))
            output, states = m.layer(x.transpose(0, 1))
            return _flat(len(x), output.transpose(0, 1), states)

        return Net(forward, layer=layer), randn(B, length, 5)

    tag = "".join(f"-{key}={value}" for key, value in options.items())
    case(f"{name}{'' if length == 7 else f'-{length}-steps'}{tag}", build)


def _flat(batch, output, states):
    """Everything a layer returns, as ``[B, -1]``; states have the samples in dimension 1."""
    states = states if isinstance(states, tuple) else (states,)
    parts = [output, *(state.transpose(0, 1) for state in states)]
    return torch.cat([part.reshape(batch, -1) for part in parts], 1)


for _name, _make in _LAYERS.items():
    _sequence(_name, _make, batch_first=True)
    _sequence(_name, _make)
    _sequence(_name, _make, length=B, batch_first=True)
    _sequence(_name, _make, length=B, num_layers=2, bidirectional=True)
    _sequence(_name, _make, num_layers=2, bias=False, batch_first=True)
    _sequence(_name, _make, bidirectional=True, batch_first=True)

_sequence("lstm", nn.LSTM, length=1)
_sequence("lstm", nn.LSTM, length=2 * B)
_sequence("lstm", nn.LSTM, proj_size=2, batch_first=True)
_sequence("lstm", nn.LSTM, proj_size=2, num_layers=2, bidirectional=True, bias=False)

case(
    "lstm-given-states",
    lambda: (
        Net(
            lambda m, x, h: m.f(x.transpose(0, 1), (h.transpose(0, 1), h.transpose(0, 1).sin()))[0],
            f=nn.LSTM(5, 3),
        ),
        (randn(B, 7, 5), randn(B, 1, 3)),
        lambda m, x, h: score(m(x, h).transpose(0, 1)),
    ),
)
case(
    "gru-given-state",
    lambda: (
        Net(
            lambda m, x, h: m.f(x, h.transpose(0, 1).contiguous())[0],
            f=nn.GRU(5, 3, batch_first=True),
        ),
        (randn(B, 7, 5), randn(B, 1, 3)),
    ),
)
case(
    "gru-trainable-initial-state",
    lambda: (
        Net(
            lambda m, x: m.f(x, m.start.expand(-1, len(x), -1).contiguous())[0],
            f=nn.GRU(5, 3, 2, batch_first=True),
            start=randn(2, 1, 3),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "gru-trainable-initial-state-stacked",
    lambda: (
        Net(
            lambda m, x: m.f(x, torch.stack([m.start] * len(x), 1))[0],
            f=nn.GRU(5, 3, batch_first=True),
            start=randn(1, 3),
        ),
        randn(B, 7, 5),
    ),
)
case(
    "lstm-last-step-classifier",
    lambda: (
        Net(
            lambda m, ids: m.head(m.f(m.embed(ids))[1][0][-1]),
            embed=nn.Embedding(9, 5),
            f=nn.LSTM(5, 3, batch_first=True),
            head=nn.Linear(3, 2),
        ),
        torch.randint(9, (B, 7)),
    ),
)
case(
    "lstm-frozen-between",
    lambda: (
        Net(
            lambda m, x: m.f(m.g(x))[0],
            g=nn.Linear(5, 5),
            f=nn.LSTM(5, 3, batch_first=True).requires_grad_(False),
        ),
        randn(B, 7, 5),
    ),
)


def _cells(name, make, start):
    """A cell in a loop over time."""

    def forward(m, x):
        state, outputs = start(len(x)), []
        for step in x.unbind(1):
            state = m.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)

    case(name, lambda: (Net(forward, cell=make()), randn(B, 3, 5)))


_cells("lstm-cell", lambda: nn.LSTMCell(5, 3), lambda batch: None)
_cells(
    "lstm-cell-given-state", lambda: nn.LSTMCell(5, 3), lambda n: (zeros(n, 3), torch.ones(n, 3))
)
_cells("lstm-cell-no-bias", lambda: nn.LSTMCell(5, 3, bias=False), lambda batch: None)
_cells("gru-cell", lambda: nn.GRUCell(5, 3), lambda batch: None)
_cells("gru-cell-given-state", lambda: nn.GRUCell(5, 3), lambda batch: torch.ones(batch, 3))
_cells("rnn-cell-tanh", lambda: nn.RNNCell(5, 3), lambda batch: None)
_cells("rnn-cell-relu", lambda: nn.RNNCell(5, 3, nonlinearity="relu"), lambda batch: None)
case("gru-cell-once", lambda: (Net(lambda m, x: m.cell(x), cell=nn.GRUCell(5, 3)), randn(B, 5)))
case(
    "gru-with-a-trainable-input",
    lambda: (
        Net(
            lambda m, x: m.f(m.q.expand(len(x), 7, -1), m.g(x)[None])[0],
            f=nn.GRU(5, 3, batch_first=True),
            g=nn.Linear(5, 3),
            q=randn(1, 1, 5),
        ),
        randn(B, 5),
    ),
)
case(
    "lstm-cell-with-a-trainable-input",
    lambda: (
        Net(
            lambda m, x: m.f(m.q.expand(len(x), -1), (m.g(x), x[:, :3]))[0],
            f=nn.LSTMCell(5, 3),
            g=nn.Linear(5, 3),
            q=randn(1, 5),
        ),
        randn(B, 5),
    ),
)
