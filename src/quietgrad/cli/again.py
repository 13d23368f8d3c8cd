"""The command line that was given, to be typed again."""

import shlex

import click
from click.core import ParameterSource


def resuming() -> str:
    """The running command with all that was said, and `--resume`: followed to the letter."""
    context = click.get_current_context()
    words = ["quietgrad", context.info_name or ""]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE and parameter.name != "resume":
            words += _said(parameter, context.params[parameter.name or ""])
    return shlex.join([*words, "--resume"])


def _said(parameter: click.Parameter, value: object) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [str(value)]
    option = parameter.opts[-1]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (option, str(each))]
