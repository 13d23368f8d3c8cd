"""`quietgrad sign FILE_OR_DIR`: sign a report, so that others see who wrote it."""

from pathlib import Path

import click

from quietgrad.cli.common import refusals
from quietgrad.report.page import read_page, write_page
from quietgrad.report.signature import make_keys
from quietgrad.report.signature import sign as signature_of
from quietgrad.runs.schema import REPORT


@click.command()
@click.argument("path", metavar="FILE_OR_DIR", required=False, type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Private key (Ed25519 in PEM, without a password).",
)
@click.option(
    "--new-key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Make a key pair: the private key in FILE, and the public key in FILE.pub.",
)
def sign(path: Path | None, key: Path | None, new_key: Path | None) -> None:
    """Sign a report, so that others can see who wrote it.

    The signature is added to the file as a comment and covers all of it. In a folder, report.html
    is signed. Whoever has the public key checks it with `quietgrad verify --public-key`.
    """
    with refusals():
        if (path is None) is not (key is None) or (path is None and new_key is None):
            raise ValueError(
                "expected FILE_OR_DIR and --key, to sign a report; or --new-key, to make a key"
            )
        if new_key is not None:
            public = make_keys(new_key)
            click.echo(f"Private key: {new_key} (keep it secret)")
            click.echo(f"Public key: {public}")
        if path is not None and key is not None:
            place = path / REPORT if path.is_dir() else path
            page = read_page(place)
            write_page(page.content + signature_of(page.content, key), place)
            click.echo(f"Signed: {place}")
