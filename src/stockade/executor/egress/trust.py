"""What a guest has to be told so that it trusts its own sandbox's authority, and whom it tells.

Files are written into a folder of the sandbox before its program starts; variables name them. The
system's own certificates stay trusted: what goes past the broker is as it always was.
"""

import ssl
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509

TRUST_FOLDER: Final = ".stockade"
"""Below the sandbox's own ``/tmp``."""
JAVA_PASSWORD: Final = "changeit"  # noqa: S105 - Java's own default; what it guards is public

_BUNDLE: Final = "certificates.pem"
_AUTHORITY: Final = "authority.pem"
_JAVA: Final = "certificates.p12"


def system_bundle() -> bytes:
    """The certificates that this machine trusts, or those of certifi where it has none."""
    found: str | None = ssl.get_default_verify_paths().cafile
    for place in (
        found or "",
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    ):
        if Path(place).is_file():
            return Path(place).read_bytes()
    import certifi

    return Path(certifi.where()).read_bytes()


def trust_files(certificate: str | None, bundle: bytes) -> dict[str, bytes]:
    """Path below the sandbox's ``/tmp``, and content. ``bundle``: see :func:`system_bundle`.

    ``certificate``: of the sandbox's own authority, where a broker made one.
    """
    authority = b"" if certificate is None else certificate.encode()
    return {
        f"{TRUST_FOLDER}/{_AUTHORITY}": authority,
        f"{TRUST_FOLDER}/{_BUNDLE}": bundle.rstrip(b"\n") + b"\n" + authority,
        f"{TRUST_FOLDER}/{_JAVA}": _truststore(authority, bundle),
    }


def trust_variables() -> dict[str, str]:
    """For the sandbox's environment; what a request sets itself goes first.

    ``JAVA_TOOL_OPTIONS`` is to be joined to others of its own by a blank:
    :func:`with_trust` does.
    """
    folder = f"/tmp/{TRUST_FOLDER}"  # noqa: S108 - the sandbox's own
    variables = dict.fromkeys(
        (
            "SSL_CERT_FILE",  # OpenSSL, and so Python, Ruby, and what asks it; Go; rustls
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "PIP_CERT",
            "GIT_SSL_CAINFO",
            "AWS_CA_BUNDLE",
            "CARGO_HTTP_CAINFO",
            "npm_config_cafile",
            "NIX_SSL_CERT_FILE",
            # These add to what they have of their own, which may not be what this machine trusts.
            "NODE_EXTRA_CA_CERTS",
            "DENO_CERT",
        ),
        f"{folder}/{_BUNDLE}",
    )
    variables["JAVA_TOOL_OPTIONS"] = (
        f"-Djavax.net.ssl.trustStore={folder}/{_JAVA} "
        f"-Djavax.net.ssl.trustStorePassword={JAVA_PASSWORD} "
        "-Djavax.net.ssl.trustStoreType=PKCS12"
    )
    return variables


def with_trust(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Both; the environment's own win, but Java's options, which are one list."""
    joined = {**variables, **environment}
    options = [
        each["JAVA_TOOL_OPTIONS"]
        for each in (variables, environment)
        if "JAVA_TOOL_OPTIONS" in each
    ]
    if options:
        joined["JAVA_TOOL_OPTIONS"] = " ".join(options)
    return joined


@lru_cache(maxsize=8)
def _truststore(authority: bytes, bundle: bytes) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    entries = [
        pkcs12.PKCS12Certificate(certificate, b"system-%d" % number)
        for number, certificate in enumerate(_certificates(bundle))
    ]
    if authority:
        own = x509.load_pem_x509_certificate(authority)
        entries.insert(0, pkcs12.PKCS12Certificate(own, b"stockade"))
    return pkcs12.serialize_java_truststore(
        entries, BestAvailableEncryption(JAVA_PASSWORD.encode())
    )


@lru_cache(maxsize=2)
def _certificates(bundle: bytes) -> tuple["x509.Certificate", ...]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.utils import CryptographyDeprecationWarning

    found: dict[bytes, x509.Certificate] = {}
    for block in bundle.split(b"-----END CERTIFICATE-----"):
        _, mark, rest = block.partition(b"-----BEGIN CERTIFICATE-----")
        if not mark:
            continue
        try:
            with warnings.catch_warnings():
                # Some of the system's have serial numbers that nobody would give today.
                warnings.simplefilter("ignore", CryptographyDeprecationWarning)
                certificate = x509.load_pem_x509_certificate(
                    mark + rest + b"-----END CERTIFICATE-----\n"
                )
        except ValueError:
            continue  # an odd one among the system's: the others are still good
        found[certificate.fingerprint(hashes.SHA256())] = certificate
    return tuple(found.values())
