"""One certificate authority for each sandbox. Its keys are in memory alone, and end with it."""

import datetime
import ipaddress
import os
import ssl
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BEFORE: Final = datetime.timedelta(hours=25)
"""For a guest whose clock goes wrong."""
_DAYS: Final = datetime.timedelta(days=31)
"""More than the longest lease."""
_MOST_HOSTS: Final = 256


class TooManyHosts(Exception):
    """A sandbox asked for more names than anybody needs."""


class Authority:
    """Signs for one sandbox, whatever host it was let to."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Stockade"),
                x509.NameAttribute(
                    NameOID.COMMON_NAME, f"Stockade sandbox {x509.random_serial_number():x}"[:40]
                ),
            ]
        )
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()
        """PEM: what the guest is to trust. It says nothing of tenant or execution."""
        self._contexts: dict[str, ssl.SSLContext] = {}

    def __repr__(self) -> str:
        return f"<Authority of {len(self._contexts)} hosts>"

    def context(self, host: str) -> ssl.SSLContext:
        """For the guest's side of a connection to that host. Raises :class:`TooManyHosts`."""
        found = self._contexts.get(host)
        if found is None:
            if len(self._contexts) >= _MOST_HOSTS:
                raise TooManyHosts(f"{_MOST_HOSTS} hosts in one sandbox, the most")
            found = self._contexts[host] = self._make(host)
        return found

    def _make(self, host: str) -> ssl.SSLContext:
        address = _address(host)
        name: x509.GeneralName = x509.DNSName(host) if address is None else x509.IPAddress(address)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            # A common name has 64 characters; who is meant is in the extension.
            _builder(
                x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Stockade")]),
                self._name,
                self._leaf_key.public_key(),
            )
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2", "http/1.1"])
        _load(context, certificate, self._leaf_key)

        def check(_connection: object, asked: str | None, _context: object) -> int | None:
            # None: a client that names nobody. For an address that is as it should be.
            if asked is None and address is not None:
                return None
            if asked is None or asked.lower().removesuffix(".") != host:
                return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
            return None

        context.sni_callback = check
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _DAYS)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(
    context: ssl.SSLContext, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """By a file that has no name and no disk: OpenSSL's binding takes nothing else."""
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    descriptor = os.memfd_create("leaf", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
