"""Makes what a deployment needs to trust itself: a CA, the server's certificate, and a key pair for each SuperNode.

    python certificates.py credentials --clients 3

For a test or a first federation. Where certificates come from an authority already, use those.
"""

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365


def make(folder: Path, clients: int, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> None:
    """Write ca.pem, server.pem, server.key, and client-0, client-0.pub, ... Existing files are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = certificate("propfair example CA", authority_key, None, authority_key, ())
    server = certificate(hosts[0], server_key, authority, authority_key, hosts)
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    write_key(folder / "server.key", server_key, serialization.PrivateFormat.PKCS8)
    for client in range(clients):
        key_pair(folder / f"client-{client}")


def key_pair(path: Path) -> None:
    """The key by which a SuperNode proves who it is: private at `path`, public at `path`.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: tuple[str, ...],
) -> x509.Certificate:
    """For a server of these hosts; without an issuer, that of an authority itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        builder = builder.add_extension(x509.SubjectAlternativeName([san(host) for host in hosts]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--host", action="append", help="a name or address of the SuperLink; may be given again")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.clients, tuple(arguments.host or ("127.0.0.1", "localhost")))
    print(f"{arguments.folder}: ca.pem, server.pem, server.key and {arguments.clients} key pairs")
