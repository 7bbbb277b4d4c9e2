"""Repeated deliveries of webhooks over HTTP, with a real gateway and its channel."""

import json
from datetime import timedelta

from channels.http_room import calling
from channels.test_webhook import config, signed
from gateway_room import Agent, all_answered
from postroom.gateway.config import GatewayConfig
from postroom.gateway.platforms.webhook import WebhookAdapter
from postroom.gateway.session import Platform


async def test_a_delivery_id_with_another_body_is_a_conflict_and_the_same_body_is_one_message(room) -> None:
    settings = config()
    adapter = WebhookAdapter(settings, clock=room.clock, timer=room.clock)
    agent = Agent()
    gateway = GatewayConfig(platforms={Platform.WEBHOOK: settings}, drain=timedelta(seconds=1))
    opened, _ = await room.open(agent, config=gateway, channel=adapter)
    found = []
    async with calling(adapter) as client:
        for words in ("Lights on", "Lights off", "Lights on"):
            body = json.dumps({"text": words}).encode()
            found.append(await client.post("/webhook/pier", content=body, headers=signed(room.clock, body)))
    assert [one.status_code for one in found] == [202, 409, 202]
    await all_answered(room, opened, 1)
    [[read]] = agent.read
    assert "Lights on" in read
