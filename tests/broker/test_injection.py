"""A secret goes into the requests it is granted for, whatever the guest does, and into no other."""

import base64

import pytest
from tests.broker.brokered import LOCAL, SECRET, Brokered, Recorder, destination, say


async def test_a_bearer_goes_in(brokered: Brokered) -> None:
    upstream = Recorder()
    async with destination(brokered.authority, upstream) as port:
        await brokered.store("key", f"https://api.test:{port} {LOCAL}", {"kind": "bearer"})
        sandbox = await brokered.open("key")
        head, body = await say(
            sandbox,
            "api.test",
            port,
            b"GET /v1/x?y=1 HTTP/1.1\r\nHost: api.test:%d\r\nAuthorization: Bearer mine\r\n\r\n" % port,
        )
        assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"fine"), (head, body)
        assert b"authorization: Bearer " + SECRET.encode() in upstream.requests[0]
        assert b"mine" not in upstream.requests[0]
        uses = await sandbox.finish()
        assert [(use.credential, use.count) for use in uses] == [("key", 1)]
        found = await brokered.uses()
        assert [(f["credential"], f["path"], f["status"]) for f in found] == [("key", "/v1/x", 200)]
