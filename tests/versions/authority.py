# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A CA for client certificates that the API server of an embedded cluster trusts."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from embedded import Cluster
from workspace import write_private

_PEM = serialization.Encoding.PEM
_KEY = (_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "clients")])


def install(cluster: Cluster) -> None:
    """Create a CA, and restart the API server, which then trusts the CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(key.public_key(), _NAME, key,
                          x509.BasicConstraints(ca=True, path_length=None))
    for path, content in zip(_paths(cluster), (certificate, key.private_bytes(*_KEY)), strict=True):
        write_private(path, content.decode())
    cluster.stop("kube-apiserver")
    cluster.start("kube-apiserver")


def new_client_certificate(cluster: Cluster, user: str) -> tuple[bytes, bytes]:
    """Issue a client certificate for a user. Return the certificate and its key in PEM format."""
    authority = serialization.load_pem_private_key(_paths(cluster)[1].read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, user)])
    certificate = _signed(key.public_key(), name, authority,
                          x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH]))
    return certificate, key.private_bytes(*_KEY)


def _paths(cluster: Cluster) -> tuple[Path, Path]:
    """Return the paths of the CA certificate and of its key.

    The file name of the certificate must be the one in tests/cluster/components.py.
    """
    certificate = Path(cluster.kubeconfig).with_name("client-authority.crt")
    return certificate, certificate.with_suffix(".key")


def _signed(key: ec.EllipticCurvePublicKey, name: x509.Name, signer: ec.EllipticCurvePrivateKey,
            extension: x509.ExtensionType) -> bytes:
    """Return a certificate of the key, in PEM format. The CA's key `signer` signs the certificate.
    """
    now = datetime.datetime.now(datetime.UTC)
    return (x509.CertificateBuilder().subject_name(name).issuer_name(_NAME).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(
                now - datetime.timedelta(minutes=5))
            .not_valid_after(now
                             + datetime.timedelta(days=1)).add_extension(extension, critical=True)
            .sign(signer, hashes.SHA256()).public_bytes(_PEM))
