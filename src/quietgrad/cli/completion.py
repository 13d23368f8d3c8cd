"""`quietgrad completion SHELL`: what makes the Tab key know commands, options and recipes."""

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_QUIETGRAD_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    r"""A script for the shell, to be read at its start.

    \b
    bash: eval "$(quietgrad completion bash)"     in ~/.bashrc
    zsh:  eval "$(quietgrad completion zsh)"      in ~/.zshrc
    fish: quietgrad completion fish | source      in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    main = click.get_current_context().find_root().command
    click.echo(found(main, {}, "quietgrad", _VARIABLE).source())
