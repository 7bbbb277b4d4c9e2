"""Stores Web Push subscriptions, and which notices each browser was shown."""

from collections.abc import Sequence

from postroom.contracts.push import PUSH, PushNotice, PushSubscription
from postroom.contracts.records import as_plain
from postroom.stores.sql_transaction import Tables


class PushTables(Tables):
    """The rows of `push_subscriptions` and `push_notices`."""

    def subscriptions(self) -> list[PushSubscription]:
        """Return all push subscriptions, oldest first."""
        rows = self._sql.all("push.subscriptions")
        return [PushSubscription(**dict(zip(_SUBSCRIPTION, row, strict=True))) for row in rows]

    def subscription(self, subscription_id: str) -> PushSubscription | None:
        """Return the push subscription with this id, or None."""
        row = self._sql.one("push.subscription", {"id": subscription_id})
        return None if row is None else PushSubscription(**dict(zip(_SUBSCRIPTION, row, strict=True)))

    def put(self, subscription: PushSubscription) -> None:
        """Store a push subscription, and delete an earlier subscription of the same browser."""
        self._sql.run("push.drop_endpoint", {"endpoint": subscription.endpoint})
        self._sql.run("push.put", as_plain(subscription))
        self._tell(PUSH)

    def drop(self, subscription_ids: Sequence[str]) -> None:
        """Delete the push subscriptions with these ids."""
        self._sql.run("push.drop", {"ids": subscription_ids})

    def see(self, seen_at: int) -> None:
        """Record the time up to which questions and failures were checked for all subscriptions."""
        self._sql.run("push.see", {"seen_at": seen_at})

    def note_result(self, subscription_id: str, *, error: str = "") -> None:
        """Record that a push service accepted a notification, or the error if the service rejected it."""
        at = None if error else self._now()
        self._sql.run("push.note_result", {"id": subscription_id, "delivered_at": at, "error": error})

    def notices(self) -> list[PushNotice]:
        """Return the notices of all subscriptions, including notices that were closed in the last day."""
        return [PushNotice(**dict(zip(_NOTICE, row, strict=True))) for row in self._sql.all("push.notices")]

    def add_notice(self, subscription_id: str, item: str) -> None:
        """Record that a browser is notified of a question or a failure."""
        self._sql.run(
            "push.add_notice", {"subscription_id": subscription_id, "item": item, "now": self._now()}
        )

    def close_notice(self, subscription_id: str, item: str) -> None:
        """Record that a question or a failure no longer needs a person."""
        self._sql.run(
            "push.close_notice", {"subscription_id": subscription_id, "item": item, "now": self._now()}
        )

    def has_notice(self, subscription_id: str, item: str) -> bool:
        """Return whether a browser has a notice of a question or a failure."""
        return self._sql.one("push.notice", {"subscription_id": subscription_id, "item": item}) is not None

    def drop_notice(self, subscription_id: str, item: str) -> None:
        """Delete the notice that a browser has of a question or a failure."""
        self._sql.run("push.drop_notice", {"subscription_id": subscription_id, "item": item})

    def purge_notices(self, before: int) -> None:
        """Delete notices that were closed before the time `before`, and notices of deleted subscriptions."""
        self._sql.run("push.purge_notices", {"before": before})


_SUBSCRIPTION = PushSubscription.__struct_fields__
_NOTICE = PushNotice.__struct_fields__
