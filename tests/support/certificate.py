"""A self-signed certificate for loopback, made anew by the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path

import pytest

_NAMES = "IP:127.0.0.1,DNS:localhost"


def self_signed(keep: Path | None = None) -> ssl.SSLContext:
    """Make a server context whose certificate names 127.0.0.1 and localhost; skips without openssl.

    `keep`: a file for the certificate, for whoever is to trust it.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command, which makes the test's certificate, is not installed")
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "certificate.pem")
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", f"subjectAltName={_NAMES}"),
                *("-keyout", str(key), "-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        if keep is not None:
            shutil.copy(certificate, keep)
    return context
