"""Names of agents: the rules for chosen names, and generated names from an adjective and a noun."""

import difflib
import random
import re
from collections.abc import Iterable

from postroom.contracts.errors import InvalidName

MAX_NAME_LENGTH = 64
"""Maximum number of characters in a name."""
RULE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_LENGTH - 1}}}")
MAX_COMPARED = 120
"""Maximum number of characters that are compared. The time grows with the square of the length."""

_ADJECTIVES = """
Able Agile Airy Alert Amber Ample Ancient Apt Ardent Arid Ashen Autumn Azure Balmy Bold Bonny Brave Breezy
Brief Bright Brisk Broad Bronze Brown Calm Candid Careful Cedar Cheery Chief Civic Civil Clean Clear Clever
Cloudy Coastal Cobalt Copper Coral Cosmic Cosy Cream Crimson Crisp Curious Dapper Daring Dawn Deep Deft Dewy
Diligent Dusky Dusty Eager Early Earnest Eastern Easy Ebony Elder Elegant Emerald Even Exact Fabled Fair
Famous Fast Fearless Fern Festive Fine Firm First Fleet Floral Fond Formal Forest Frank Free Fresh Frosty
Gentle Gilded Glad Gleaming Golden Good Grand Granite Grassy Gray Green Hale Handy Happy Hardy Hazel Hearty
Helpful High Hidden Honest Humble Icy Indigo Inland Ivory Jade Jolly Jovial Joyful Just Keen Kind Lasting
Lavender Leafy Level Light Lilac Limber Little Lively Lofty Loyal Lucid Lucky Lunar Maple Marble Maroon Mellow
Merry Mighty Mild Mindful Mint Misty Modest Mossy Mountain Navy Neat New Nimble Noble Northern Novel Oaken
Ocean Ochre Olive Opal Open Orange Orderly Outer Pale Patient Peaceful Pearl Plain Pleasant Plucky Polar
Polished Prairie Prime Proud Prudent Purple Quick Quiet Radiant Rapid Rare Ready Red Regal Rich River Robust
Rosy Round Royal Ruby Rural Russet Rustic Sage Sandy Sapphire Scarlet Scenic Secure Serene Shady Sharp Shining
Silent Silver Simple Sleek Smart Smooth Snowy Sober Soft Solar Solid Southern Sparkling Spring Spry Stable
Starry Steady Steep Still Stout Strong Sturdy Subtle Summer Sunny Sure Swift Tall Tame Tawny Teal Tender
Thoughtful Tidal Tidy Timely Topaz Tranquil True Trusty Turquoise Upright Upper Urban Valiant Velvet Verdant
Vernal Violet Vivid Warm Wary Western White Whole Wild Willing Windy Winter Wise Witty Wooden Woolen Young
Zesty
"""

_NOUNS = """
Acorn Alder Alpaca Anchor Antler Apple Apricot Arbor Arch Ash Aspen Aster Atlas Aurora Badger Bamboo Bank
Barley Barn Basin Bay Beach Beacon Bear Beaver Bee Beech Bell Bench Berry Birch Bird Bison Blossom Bluff Boat
Bog Boulder Bridge Brook Buck Buffalo Bush Butte Cabin Cactus Camel Canal Candle Canoe Canyon Cape Caravan
Cardinal Caribou Carp Castle Cave Cavern Cedar Chapel Cherry Chestnut Cliff Clock Cloud Clover Coast Colt
Comet Condor Coral Corn Cottage Cove Coyote Crag Crane Creek Crest Cricket Crow Crystal Current Cypress Daisy
Dale Deer Delta Den Desert Dingo Dolphin Dove Dragonfly Drift Drum Duck Dune Eagle Echo Eddy Egret Elk Elm
Ember Emu Estuary Falcon Fawn Feather Fen Fern Ferry Field Finch Fir Firefly Fjord Flame Flax Flint Flower
Ford Forest Forge Fountain Fox Frog Frost Galaxy Garden Garnet Gate Gazelle Gecko Geyser Ginger Glacier Glade
Glen Goat Goldfinch Goose Gorge Granite Grape Grass Grotto Grouse Grove Gulch Gull Harbor Hare Harp Harvest
Haven Hawk Hawthorn Hazel Heath Heather Hedge Heron Hickory Hill Hive Hollow Holly Honey Horizon Horn Horse
Ibex Ibis Inlet Iris Island Ivy Jackal Jasmine Jay Jetty Juniper Kayak Kelp Kestrel Kettle Kite Koala Lagoon
Lake Lantern Larch Lark Laurel Lava Leaf Ledge Lemon Lemur Lichen Lily Linden Lion Lizard Llama Lodge Loon
Lotus Lynx Magnet Magpie Mango Mantis Maple Marigold Market Marlin Marsh Marten Meadow Melon Mesa Meteor Mill
Mink Mint Mole Moon Moor Moose Moss Moth Mountain Mulberry Myrtle Narrows Nebula Nectar Nest Newt Nightingale
Nutmeg Oak Oasis Ocean Olive Onyx Opal Orbit Orchard Orchid Oriole Osprey Otter Owl Ox Oyster Palm Panda
Panther Parrot Pass Path Peach Peak Pear Pebble Pelican Penguin Peony Petal Pheasant Pier Pigeon Pine Planet
Plateau Plaza Plover Plum Pond Poplar Poppy Porcupine Porpoise Port Prairie Prism Puffin Puma Quail Quarry
Quartz Quay Quill Quince Rabbit Raccoon Rain Rapids Raven Reed Reef Reindeer Ridge River Roadrunner Robin Rock
Rook Root Rose Rowan Saddle Sage Sail Salmon Sand Sandpiper Seal Sequoia Shore Shrike Signal Sky Slope Snow
Sparrow Spring Spruce Squirrel Stag Star Starling Steppe Stone Stork Stream Summit Sun Swallow Swan Sycamore
Tern Thicket Thistle Thrush Thunder Tide Tiger Timber Toad Topaz Tortoise Tower Trail Tree Trout Tulip Tundra
Turtle Vale Valley Vine Viper Volcano Vole Walnut Walrus Warbler Waterfall Wave Weasel Weaver Whale Wharf
Wheat Willow Wind Wolf Wombat Wood Woodpecker Wren Yak Yarrow Yew Zebra Zephyr Zinnia
"""

RESERVED = frozenset({"assistant", "developer", "human", "nobody", "postroom", "system", "tool", "user"})
"""The names that new agents and people cannot get, because a model could confuse a name with a role."""
RECIPIENTS = frozenset({"all", "chat", "everybody", "everyone", "me", "thread"})
"""The names that new agents and people cannot get, because a name could mean other recipients."""
_DIGITS = str.maketrans({"0": "o", "1": "l", "3": "e", "4": "a", "5": "s", ".": None, "_": None, "-": None})
_ALIKE = _DIGITS | str.maketrans({"i": "l"})
"""Replaces characters that look alike when names are compared.

Two names must also differ in other characters than dots and hyphens.
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
NOUNS = tuple(_NOUNS.split())


def generate_name(dice: random.Random) -> str:
    """Return a random agent name such as `GreenLake`."""
    return dice.choice(ADJECTIVES) + dice.choice(NOUNS)


def check_name(name: str, *, of: str = "an agent") -> str:
    """Return a name unchanged, or raise an error for an invalid name.

    Raises:
        InvalidName: The name is invalid. The remedy suggests a valid name.
    """
    if RULE.fullmatch(name):
        return name
    mended = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64]
    hint = (
        f"for example {mended!r}" if mended and not _is_reserved_name(mended) else "for example 'builder-1'"
    )
    raise InvalidName(
        f"{shown(name)} is not a valid name for {of}",
        value=name,
        remedy="use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit; " + hint,
    )


def check_new_name(name: str) -> str:
    """Return a new name unchanged, or raise an error for an invalid or reserved name.

    Raises:
        InvalidName: The name is invalid or reserved, or looks like a reserved name: `System.`, `5ystem`,
            `every-one`.
    """
    check_name(name)
    if _is_reserved_name(name):
        is_speaker = _look(name) in _LOOKS
        raise InvalidName(
            f"the name {name!r} is reserved: a model could confuse it with "
            + ("a role in its prompt" if is_speaker else "other recipients"),
            value=name,
            remedy="choose another name, for example 'builder-1'",
        )
    return name


def _is_reserved_name(name: str) -> bool:
    # Count `i` as `l` only for reserved names of roles, because Ali is a valid name.
    return _look(name) in _LOOKS or name.casefold().translate(_DIGITS) in RECIPIENTS


def _look(name: str) -> str:
    return name.casefold().translate(_ALIKE).replace("rn", "m").replace("vv", "w")


_LOOKS = frozenset(map(_look, RESERVED))


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return the known names that are most similar to a name, most similar first."""
    by_key = {other.casefold()[:MAX_COMPARED]: other for other in known}
    close = difflib.get_close_matches(name.casefold()[:MAX_COMPARED], list(by_key), n=count, cutoff=0.5)
    return [by_key[key] for key in close]


def shown(text: str, *, limit: int = 80) -> str:
    """Return a text in quotes for an error message, cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
