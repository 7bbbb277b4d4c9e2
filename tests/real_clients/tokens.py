"""The tokens of a client's tools, counted by the tokenizer of OpenAI's models; Claude's and Gemini's are not public."""

import json
import subprocess
from collections.abc import Iterable

from real_clients.asked import Offered
from real_clients.home import PROGRAMS

_COUNT = """
const {encode} = require("gpt-tokenizer/encoding/o200k_base");
console.log(encode(require("fs").readFileSync(0, "utf8")).length);
"""


def tokens_of(tools: Iterable[Offered]) -> int:
    """Return the number of tokens of these tools' definitions, in the form of a model's request."""
    told = [{"name": one.name, "description": one.description, "parameters": one.schema} for one in tools]
    return tokens_in([json.dumps(told, ensure_ascii=False, separators=(",", ":"))])


def tokens_in(texts: Iterable[str]) -> int:
    """Return the number of tokens of these texts together."""
    done = subprocess.run(
        ["node", "-e", _COUNT],
        cwd=PROGRAMS.parent,
        input="\n".join(texts),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)
