"""Command blocks of a Markdown document.

A fenced block of ```bash or ```console is run when the line before it is `<!-- run -->`, or `<!-- run: slow -->` if it
takes more than a few seconds. In a console block only the lines after `$ ` are commands.
"""

import re
from typing import NamedTuple

BLOCK = re.compile(
    r"^<!-- run(?P<slow>: slow)? -->\n```(?P<language>bash|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
ANY_MARK = re.compile(r"^<!-- run.*-->$", re.MULTILINE)


class Block(NamedTuple):
    line: int
    commands: str
    slow: bool


def runnable_blocks(document: str) -> list[Block]:
    blocks = []
    for match in BLOCK.finditer(document):
        commands = match["text"]
        if match["language"] == "console":
            lines = (line[2:] for line in commands.splitlines() if line.startswith("$ "))
            commands = "".join(f"{line}\n" for line in lines)
        blocks.append(Block(document.count("\n", 0, match.start()) + 2, commands, match["slow"] is not None))
    if len(blocks) != len(ANY_MARK.findall(document)):
        raise ValueError("a mark <!-- run --> is not followed at once by a ```bash or ```console block")
    return blocks
