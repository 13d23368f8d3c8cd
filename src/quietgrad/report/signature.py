"""Signatures of reports (Ed25519, RFC 8032): who wrote a page, and that it is as it was written.

A signature is the last line of the file, a comment of HTML, and covers every byte before it.
"""

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from quietgrad.report.evidence import ReportError
from quietgrad.report.page import PageSignature

_PURPOSE = b"quietgrad report, signed\n"  # so that nothing else that was signed passes for one
_PUBLIC = ".pub"


def make_keys(path: Path) -> Path:
    """A new key pair: the private key in this file, which only its owner can read.

    Returns:
        The file beside it, with the public key.
    """
    public = path.with_name(path.name + _PUBLIC)
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for place, content, mode in ((path, private, 0o600), (public, shown, 0o644)):
        try:
            with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
                out.write(content)
        except FileExistsError:
            raise ReportError(f"{place} exists: a key is not overwritten. Choose another") from None
    return public


def sign(content: bytes, key: Path) -> bytes:
    """The line that is added to a page to sign it, with the private key in a file."""
    try:
        private = load_pem_private_key(_read(key), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(key, "a private key without a password", error) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _no_key(key, "a private key", type(private).__name__)
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    value = private.sign(_PURPOSE + content)
    return f"\n<!-- quietgrad signature, ed25519: {public.hex()} {value.hex()} -->\n".encode()


def read_public_key(path: Path) -> bytes:
    """The public key in a file: PEM, or 64 hexadecimal digits."""
    content = _read(path)
    try:
        if len(content.strip()) == 64:
            return bytes.fromhex(content.strip().decode())
        public = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "a public key", error) from error
    if not isinstance(public, Ed25519PublicKey):
        raise _no_key(path, "a public key", type(public).__name__)
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


def is_signed_by(public_key: bytes, content: bytes, signature: PageSignature) -> bool:
    """Whether the owner of this key signed this page."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature.value, _PURPOSE + content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error}): expected a key") from error


def _no_key(path: Path, expected: str, found: object) -> ReportError:
    return ReportError(
        f"{path} is no key to sign reports with ({found}): expected {expected}, Ed25519 in PEM, as"
        " quietgrad sign --new-key FILE makes it"
    )
