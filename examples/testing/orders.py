"""An application: takes orders from a queue, and posts an invoice for each. Its tests are beside it."""

from __future__ import annotations

import contextlib
import json

from bmqtwist.sdk import PostRefused, SdkError
from bmqtwist.sdk.aio import Session

ORDERS, INVOICES = "bmq://orders/incoming", "bmq://invoices/outgoing"


async def work(session: Session) -> None:
    """Work until the session is stopped."""
    invoices = await session.open(INVOICES, write=True)
    orders = await session.open(ORDERS, read=True)
    async for message in orders:
        order = json.loads(message.payload)
        if order["amount"] < 0:
            continue  # not confirmed: somebody has to look at it
        try:
            await invoices.post(b"%d" % order["number"], {"amount": order["amount"]})
        except PostRefused:
            continue  # nor this one
        with contextlib.suppress(SdkError):  # no connection just now: the order comes again
            message.confirm()
