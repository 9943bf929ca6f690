"""Example application: consumes orders and posts an invoice for each. test_orders.py contains its tests."""

from __future__ import annotations

import contextlib
import json

from bmqtwist.sdk import PostRefused, SdkError
from bmqtwist.sdk.aio import Session

ORDERS, INVOICES = "bmq://orders/incoming", "bmq://invoices/outgoing"


async def work(session: Session) -> None:
    """Process orders until the session is stopped."""
    invoices = await session.open(INVOICES, write=True)
    orders = await session.open(ORDERS, read=True)
    async for message in orders:
        order = json.loads(message.payload)
        if order["amount"] < 0:
            continue  # an invalid order stays unconfirmed, for an operator
        try:
            await invoices.post(b"%d" % order["number"], {"amount": order["amount"]})
        except PostRefused:
            continue  # without an invoice the order stays unconfirmed, too
        with contextlib.suppress(SdkError):  # the connection is lost: the broker redelivers the order
            message.confirm()
