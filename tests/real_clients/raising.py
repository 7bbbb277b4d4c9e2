"""Pin the newest version of every client that tests drive, and print what changed: `make raise-clients`."""

import json
import subprocess
from pathlib import Path

PINS = Path(__file__).parent / "package.json"


def main() -> None:
    """Ask npm for each package and write the file of pins."""
    document = json.loads(PINS.read_text())
    pinned = document["dependencies"]
    for package, old in pinned.items():
        asked = ["npm", "view", package, "version"]
        new = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        pinned[package] = new
        print(f"{package} {old}" + ("" if new == old else f" -> {new}"))
    PINS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
