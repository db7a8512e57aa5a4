"""Times requests from where it runs, and prints what it found as JSON.

`web_client.py WHAT HOST PORT COUNT BYTES [CA]`: `connect` makes a connection for each request,
`keep` one for all, `large` fetches BYTES once, `many` holds COUNT connections at once. Through the
proxy that HTTPS_PROXY names, if any, by CONNECT; over TLS where there is a CA.
"""

import contextlib
import http.client
import json
import os
import ssl
import sys
import time
import urllib.parse


def main(what: str, host: str, port: str, count: str, size: str, authority: str = "") -> None:
    context = None
    if authority:
        context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or authority)

    def connect() -> http.client.HTTPConnection:
        target = (host, int(port))
        proxy = os.environ.get("HTTPS_PROXY")
        parts = urllib.parse.urlsplit(proxy or "")
        near = (parts.hostname, parts.port) if proxy else target
        made = (
            http.client.HTTPSConnection(*near, timeout=60, context=context)
            if context is not None
            else http.client.HTTPConnection(*near, timeout=60)
        )
        if proxy:
            made.set_tunnel(*target)
        return made

    def fetch(connection: http.client.HTTPConnection, path: str) -> int:
        connection.request("GET", path)
        answer = connection.getresponse()
        buffer, received = bytearray(262_144), 0
        while taken := answer.readinto(buffer):
            received += taken
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {bytes(buffer[:300])!r}")
        return received

    times = []
    if what == "connect":
        for _ in range(int(count)):
            began = time.perf_counter()
            with contextlib.closing(connect()) as connection:
                fetch(connection, "/small")
            times.append(time.perf_counter() - began)
    elif what == "keep":
        with contextlib.closing(connect()) as connection:
            fetch(connection, "/small")
            for _ in range(int(count)):
                began = time.perf_counter()
                fetch(connection, "/small")
                times.append(time.perf_counter() - began)
    elif what == "large":
        with contextlib.closing(connect()) as connection:
            began = time.perf_counter()
            if fetch(connection, f"/large/{size}") != int(size):
                raise SystemExit("it is cut")
            times.append(time.perf_counter() - began)
    else:
        began = time.perf_counter()
        connections = [connect() for _ in range(int(count))]
        for connection in connections:
            connection.request("GET", "/small")
        for connection in connections:
            if connection.getresponse().read() != b"\0\0":
                raise SystemExit("it is another answer")
        times.append(time.perf_counter() - began)
    json.dump(times, sys.stdout)


main(*sys.argv[1:])
