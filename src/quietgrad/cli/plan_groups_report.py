"""A plan of groups, in a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quietgrad.planning import Option, Plan
from quietgrad.planning.machine import in_words
from quietgrad.planning.theory import ASSUMPTIONS


def show(plan: Plan, console: Console, *, with_layers: bool) -> None:
    """Peaks by number of groups, what is fixed, and the recommendation."""
    if with_layers:
        console.print(_layers(plan))
    console.print(_options(plan))
    for line in _remarks(plan):
        console.print(escape(line), highlight=False)


def _options(plan: Plan) -> Table:
    table = Table(caption="Numbers between these bring no lower peak.", caption_justify="left")
    for name in ("groups", "peak/sample", "if uniform", "samples at once", "Theorem 1"):
        table.add_column(name, justify="right")
    for best, even in zip(plan.best, plan.uniform, strict=True):
        if not _is_of_use(best, plan):
            continue
        chosen = best.groups == plan.recommended.option.groups
        table.add_row(
            _groups(best, plan),
            in_words(best.peak),
            in_words(even.peak),
            f"{best.most_samples:,}",
            f"x {best.bound:.2f}",
            style="bold" if chosen else None,
        )
    return table


def _is_of_use(option: Option, plan: Plan) -> bool:
    """Whether it needs less than fewer groups do, by a thousandth at least; or is an extreme."""
    fewer = [each.peak for each in plan.best if each.groups < option.groups]
    is_extreme = not fewer or option is plan.best[-1]
    return is_extreme or option is plan.recommended.option or option.peak < 0.999 * min(fewer)


def _groups(option: Option, plan: Plan) -> str:
    if option.groups == 1:
        return "1 (all-layer)"
    is_layer_wise = option.groups == len(plan.layers)
    return f"{option.groups} (layer-wise)" if is_layer_wise else str(option.groups)


def _remarks(plan: Plan) -> list[str]:
    step = plan.step
    lines = [
        f"Besides: {in_words(step.fixed)} for weights ({in_words(step.weights)}), sums "
        f"({in_words(step.trainable)}) and optimizer ({in_words(step.optimizer)}), whatever the "
        f"groups; {in_words(step.trace.probing)} per sample while the first batches are probed.",
    ]
    lines.append("All of this is memory of tensors; on the CPU a process may hold a third more.")
    if plan.unused:
        lines.append(f"No gradient reached {', '.join(plan.unused)}: in the group clipped last.")
    return [*lines, ASSUMPTIONS, f"Recommended: {plan.recommended.why}"]


def _layers(plan: Plan) -> Table:
    table = Table()
    table.add_column("layer", overflow="fold")
    table.add_column("kind")
    for name in ("numbers", "T", "d", "p", "held per sample"):
        table.add_column(name, justify="right")
    for layer in plan.layers:
        sizes = (layer.positions, layer.inputs, layer.outputs)
        table.add_row(
            escape(layer.name),
            layer.kind,
            f"{layer.numbers:,}",
            *("-" if size is None else f"{size:,}" for size in sizes),
            in_words(layer.held),
        )
    return table
