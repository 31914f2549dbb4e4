# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A CA for client certificates that an embedded cluster trusts."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from embedded import Cluster
from workspace import write_private

_PEM = serialization.Encoding.PEM
_KEY_FORMAT = (_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
_CA_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "clients")])


def install(cluster: Cluster) -> None:
    """Create a CA, and restart the API server with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed_certificate(key.public_key(), _CA_NAME, key,
                                      x509.BasicConstraints(ca=True, path_length=None))
    contents = (certificate, key.private_bytes(*_KEY_FORMAT))
    for path, content in zip(_paths(cluster), contents, strict=True):
        write_private(path, content.decode())
    cluster.stop("kube-apiserver")
    cluster.start("kube-apiserver")


def new_client_certificate(cluster: Cluster, user: str) -> tuple[bytes, bytes]:
    """Return a client certificate for a user, and its key, in PEM format."""
    ca_key = serialization.load_pem_private_key(_paths(cluster)[1].read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, user)])
    certificate = _signed_certificate(key.public_key(), subject, ca_key,
                                      x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH]))
    return certificate, key.private_bytes(*_KEY_FORMAT)


def _paths(cluster: Cluster) -> tuple[Path, Path]:
    """Return the paths of the CA certificate and of its key.

    The first must be the same path as in tests/cluster/components.py.
    """
    certificate = Path(cluster.kubeconfig).with_name("client-authority.crt")
    return certificate, certificate.with_suffix(".key")


def _signed_certificate(public_key: ec.EllipticCurvePublicKey, subject: x509.Name,
                        ca_key: ec.EllipticCurvePrivateKey,
                        extension: x509.ExtensionType) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(_CA_NAME)
            .public_key(public_key).serial_number(x509.random_serial_number()).not_valid_before(
                now - datetime.timedelta(minutes=5))
            .not_valid_after(now
                             + datetime.timedelta(days=1)).add_extension(extension, critical=True)
            .sign(ca_key, hashes.SHA256()).public_bytes(_PEM))
