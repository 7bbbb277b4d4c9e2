"""Every promise of the port `ChatStores`: `promise(stores, clock)` on empty stores that go by `clock`."""

from conformance.promises import (
    chat_files,
    chat_intake,
    chat_intake_listings,
    chat_links,
    chat_pairing,
    chat_people,
    chat_sessions,
    web_chats,
)
from conformance.promises.chat_given import ChatPromise

PROMISES: tuple[ChatPromise, ...] = (
    *chat_intake.PROMISES,
    *chat_intake_listings.PROMISES,
    *chat_sessions.PROMISES,
    *chat_people.PROMISES,
    *chat_pairing.PROMISES,
    *chat_links.PROMISES,
    *chat_files.PROMISES,
    *web_chats.PROMISES,
)
