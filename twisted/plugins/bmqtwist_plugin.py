"""Plugin of twistd for the command `bmq`."""

from twisted.application.service import ServiceMaker

bmq = ServiceMaker("bmqtwist", "bmqtwist.tap", "A BlazingMQ-compatible message broker.", "bmq")
