"""The SDK of this project with TLS and a password, on all fronts; request and reply."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from kit.process import STARTED, BrokerProcess

from bmqtwist.sdk import Credential, Message, Result, SdkError, aio, simple
from bmqtwist.sdk.rpc import Requester, Responder

URI = "bmq://d/q"
DEADLINE = 120.0
ALICE = Credential.basic("alice", "secret")

WITH_TWISTED = """
import pathlib, sys
from twisted.internet.ssl import Certificate, optionsForClientTLS
from twisted.internet.task import react
from bmqtwist.sdk import Credential
from bmqtwist.sdk.tx import Session
address, cert, uri = sys.argv[1:]
async def main(reactor):
    trusted = optionsForClientTLS("localhost", trustRoot=Certificate.loadPEM(pathlib.Path(cert).read_bytes()))
    session = Session(reactor, address, tls=trusted, credential=Credential.basic("alice", "secret"))
    await session.start()
    message = await (await session.open(uri, read=True)).get()
    print(len(message.payload))
    message.confirm()
    await session.stop()
react(main)
"""

pytestmark = pytest.mark.process


def test_every_front_of_the_sdk_connects_with_tls_and_password(secure: tuple[str, Path]) -> None:
    address, cert = secure
    context = ssl.create_default_context(cafile=str(cert))
    payload = b"m" * 3_000_000

    async def with_asyncio() -> None:
        async with (aio.Session(address, tls=context, credential=ALICE) as session,
                    session.open(URI, write=True) as queue):
            assert (await queue.post(payload)).ok
        with pytest.raises(SdkError) as caught:
            await aio.Session(address, tls=context, credential=Credential.basic("alice", "guess")).start()
        assert caught.value.result is Result.REFUSED
        with pytest.raises(SdkError) as caught:  # a certificate without a known authority
            await aio.Session(address, credential=ALICE, connect_timeout_s=1.0).start()
        assert caught.value.result is Result.TIMEOUT

    asyncio.run(asyncio.wait_for(with_asyncio(), DEADLINE))

    with simple.Session(address, tls=context, credential=ALICE) as session:
        queue = session.open(URI, read=True, write=True)
        message = queue.get(DEADLINE)
        assert message is not None and message.payload == payload
        message.confirm()
        assert queue.post(payload).ok

    done = subprocess.run([sys.executable, "-c", WITH_TWISTED, address, str(cert), URI], capture_output=True, text=True,
                          timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (0, "3000000\n"), done.stderr


def test_rpc_requests_get_their_replies(broker_process: BrokerProcess) -> None:
    broker_process.config.domain("d")
    broker_process.launch()
    broker_process.expect(STARTED, deadline=180.0)

    async def handler(message: Message) -> bytes:
        return b"%d" % sum(map(int, message.payload.split(b"+")))

    async def scenario() -> None:
        async with aio.Session(broker_process.uri) as server, aio.Session(broker_process.uri) as client:
            asked = await server.open(URI, read=True)
            async with Responder(server) as responder, Requester(client, "d") as requester:
                serving = asyncio.create_task(responder.serve(asked, handler))
                queue = await client.open(URI, write=True)
                replies = await asyncio.gather(*(requester.request(queue, b"%d+%d" % (n, n)) for n in range(20)))
                assert [int(reply.payload) for reply in replies] == [2 * n for n in range(20)]
                serving.cancel()
                with pytest.raises(SdkError) as caught:
                    await requester.request(queue, b"1+1", timeout_s=0.2)
                assert caught.value.result is Result.TIMEOUT
    asyncio.run(asyncio.wait_for(scenario(), DEADLINE))
