"""Taking a torch function mode off the stack, wherever it is on it."""

from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)


def remove_mode(unwanted: TorchFunctionMode) -> None:
    """Switch it off, however often it is on: an interrupt may have come at any moment."""
    if not any(mode is unwanted for mode in _get_current_function_mode_stack()):
        return
    others = [_pop_mode() for _ in _get_current_function_mode_stack()]
    for mode in reversed(others):
        if mode is not unwanted:
            _push_mode(mode)
