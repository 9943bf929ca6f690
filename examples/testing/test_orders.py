"""Tests of `orders.py` with the test kit: pytest, a broker in this process, virtual time."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from orders import INVOICES, ORDERS, work

from bmqtwist.sdk import Result
from bmqtwist.sdk.aio import Session
from bmqtwist.testing import Broker, BrokerProcess, run

pytestmark = [pytest.mark.bmq_domain("orders", max_delivery_attempts=3, ttl=60),
              pytest.mark.bmq_domain("invoices", mode="fanout", app_ids=["mail", "books"])]


def order(number: int, amount: int = 100) -> bytes:
    """Return the payload of an order."""
    return json.dumps({"number": number, "amount": amount}).encode()


def test_every_order_gets_an_invoice(bmq_broker: Broker) -> None:
    async def scenario() -> None:
        async with bmq_broker.session(name="shop") as session:
            task = asyncio.ensure_future(work(session))
            bmq_broker.put(ORDERS, order(1))
            bmq_broker.put(ORDERS, order(2, 250))
            await bmq_broker.until(lambda: not bmq_broker.messages(ORDERS))
        await task

    run(scenario())
    bmq_broker.assert_posted(INVOICES, b"2", {"amount": 250}, count=1)
    bmq_broker.assert_confirmed(ORDERS, 2)
    assert [invoice.payload for invoice in bmq_broker.drain(f"{INVOICES}?id=mail")] == [b"1", b"2"]


def test_an_invalid_order_stays_unconfirmed_in_the_queue(bmq_broker: Broker) -> None:
    async def scenario() -> None:
        async with bmq_broker.session(name="shop") as session:
            task = asyncio.ensure_future(work(session))
            bmq_broker.put(ORDERS, order(1, -5))
            await bmq_broker.until(lambda: bmq_broker.recorder.deliveries(ORDERS))
        await task

    run(scenario())
    assert bmq_broker.recorder.posts(INVOICES) == []
    assert len(bmq_broker.messages(ORDERS)) == 1


@pytest.mark.parametrize("status", [Result.LIMIT_MESSAGES, Result.STORAGE_FAILURE])
def test_an_order_stays_in_the_queue_if_its_invoice_is_refused(bmq_broker: Broker, status: Result) -> None:
    async def scenario() -> None:
        async with bmq_broker.session(name="shop") as session:
            task = asyncio.ensure_future(work(session))
            with bmq_broker.faults.refuse("post", uri=INVOICES, status=status):
                bmq_broker.put(ORDERS, order(1))
                await bmq_broker.until(lambda: bmq_broker.recorder.acks(INVOICES))
            assert bmq_broker.messages(ORDERS)
            bmq_broker.disconnect("shop")  # unconfirmed messages are redelivered to the new connection
            await bmq_broker.until(lambda: not bmq_broker.messages(ORDERS))
        await task

    run(scenario())
    assert [post.status for post in bmq_broker.recorder.posts(INVOICES)] == [status, Result.SUCCESS]


def test_no_invoice_is_lost_while_the_broker_is_down_for_ten_minutes(bmq_broker: Broker) -> None:
    """The ten minutes are virtual: the test takes less than a minute."""
    bmq_broker.domain("orders", ttl=3600)
    began = time.monotonic()

    async def scenario() -> None:
        async with bmq_broker.session(name="shop") as session:
            task = asyncio.ensure_future(work(session))
            bmq_broker.put(ORDERS, order(1))
            await bmq_broker.until(lambda: not bmq_broker.messages(ORDERS))
            bmq_broker.crash()
            await asyncio.sleep(600)
            bmq_broker.start()
            bmq_broker.put(ORDERS, order(2))
            await bmq_broker.until(lambda: not bmq_broker.messages(ORDERS), 60)
        await task

    run(scenario())
    assert {invoice.payload for invoice in bmq_broker.messages(INVOICES)} == {b"1", b"2"}
    assert time.monotonic() - began < 60


def test_an_order_that_is_not_consumed_expires(bmq_broker: Broker) -> None:
    bmq_broker.put(ORDERS, order(1))
    bmq_broker.advance(62)
    bmq_broker.assert_empty(ORDERS)


def test_a_session_with_any_address_connects_to_the_intercepting_broker(bmq_broker: Broker) -> None:
    async def scenario() -> None:
        async with Session("tcp://broker.example.com:30114") as session:
            task = asyncio.ensure_future(work(session))
            bmq_broker.put(ORDERS, order(1))
            await bmq_broker.until(lambda: not bmq_broker.messages(ORDERS))
        await task

    with bmq_broker.intercept():
        run(scenario())


def test_the_session_reconnects_to_a_broker_process_that_was_killed(bmq_process: BrokerProcess) -> None:
    async def scenario() -> None:
        async with Session(bmq_process.url) as session:
            task = asyncio.ensure_future(work(session))
            writer = await session.open("bmq://invoices/check", write=True)
            assert (await writer.post(b"1")).ok
            await asyncio.to_thread(bmq_process.kill)
            await asyncio.to_thread(bmq_process.start)
            assert (await writer.post(b"2")).ok
        await task

    asyncio.run(scenario())
    assert any("started successfully" in line for line in bmq_process.log())
