"""Ways in which a model may arrange ``[B, T, D]`` for its layers; the output is ``[B, T, 2]``."""

import torch


def tokens(net, x):
    """Every layer on ``[B, T, D]``."""
    return net.last(net.first(x).tanh())


def time_first(net, x):
    return tokens(net, x.transpose(0, 1)).transpose(0, 1)


def folded(net, x):
    return tokens(net, x.flatten(0, 1)).unflatten(0, x.shape[:2])


def folded_time_first(net, x):
    rows = x.transpose(0, 1)
    return tokens(net, rows.flatten(0, 1)).unflatten(0, rows.shape[:2]).transpose(0, 1)


def two_folds(net, x):
    """One layer on rows of a sample side by side, the other on rows of a time step."""
    hidden = net.first(x.flatten(0, 1)).unflatten(0, x.shape[:2]).transpose(0, 1)
    rows = net.last(hidden.flatten(0, 1).tanh())
    return rows.unflatten(0, hidden.shape[:2]).transpose(0, 1)


def two_views(net, x):
    rows = torch.cat([x, 2 * x])
    first, second = tokens(net, rows).chunk(2)
    return first * second


def last_step_only(net, x):
    return time_first(net, x)[:, -1:]


def own_step_only(net, x):
    """Each sample reads one time step, chosen by its own values."""
    hidden = time_first(net, x)
    place = x.sum(-1).argmax(1)
    return hidden.gather(1, place[:, None, None].expand(-1, 1, hidden.shape[-1]))


LAYOUTS = [
    tokens,
    time_first,
    folded,
    folded_time_first,
    two_folds,
    two_views,
    last_step_only,
    own_step_only,
]
