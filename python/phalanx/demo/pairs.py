"""Questions and answers out of the documentation strings of Python's standard library.

Every machine that can run the demo has this text, it is real prose, and a right answer can be checked word for word.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import NamedTuple

# Importing these has no side effect: no window, no network, no output.
MODULES = (
    "argparse array ast asyncio base64 bisect bz2 calendar cmath codecs collections colorsys concurrent.futures "
    "configparser contextlib copy copyreg csv ctypes.util dataclasses datetime decimal difflib dis email email.utils "
    "enum filecmp fileinput fnmatch fractions ftplib functools gc getopt getpass gettext glob gzip hashlib heapq hmac "
    "html http.client http.cookies imaplib importlib.resources importlib.util inspect io ipaddress itertools json "
    "keyword linecache locale logging lzma mailbox marshal math mimetypes mmap multiprocessing netrc numbers operator "
    "optparse os os.path pathlib pdb pickle pickletools pkgutil platform plistlib poplib posixpath pprint profile "
    "pyclbr pydoc queue quopri random re reprlib runpy sched secrets select selectors shelve shlex shutil signal "
    "smtplib socket socketserver sqlite3 ssl stat statistics string struct subprocess symtable sys sysconfig tarfile "
    "tempfile textwrap threading time timeit token tokenize trace traceback tracemalloc types typing unicodedata "
    "unittest unittest.mock urllib.error urllib.parse urllib.request uuid warnings wave weakref wsgiref.util "
    "xml.dom xml.etree.ElementTree xml.sax.saxutils zipapp zipfile zlib"
).split()
MAX_PAIRS = 256
MAX_PER_MODULE = 3
ANSWER_LENGTH = range(20, 81)  # characters


class Pair(NamedTuple):
    module: str
    name: str  # as in the question: `os.path.join`
    answer: str

    @property
    def question(self) -> str:
        return f"What does `{self.name}` do?"

    @property
    def reworded(self) -> str:
        """The same question in words that training never shows."""
        return f"Tell me what `{self.name}` does."


def first_sentence(docstring: str) -> str | None:
    """The first sentence on one line, or None when the text does not begin with a plain one."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    sentence = re.match(r"[A-Z].*?\.(?= |$)", paragraph)
    return sentence.group() if sentence and sentence.group().isascii() else None


def _pairs_of_module(module_name: str) -> list[Pair]:
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # distributions leave some modules out
        return []
    pairs = []
    public = getattr(module, "__all__", None)
    for name in sorted(public or vars(module)):
        member = getattr(module, name, None)
        if public is None and getattr(member, "__module__", None) != module_name:
            continue  # imported there from elsewhere
        if name.startswith("_") or not (inspect.isroutine(member) or inspect.isclass(member)):
            continue
        if inspect.isclass(member) and issubclass(
            member, BaseException
        ):  # "Base class for errors." everywhere
            continue
        answer = first_sentence(inspect.getdoc(member) or "")
        if answer and len(answer) in ANSWER_LENGTH and not answer.endswith(("e.g.", "i.e.", "..")):
            pairs.append(Pair(module_name, f"{module_name}.{name}", answer))
    return pairs


def collect_pairs() -> list[Pair]:
    """At most MAX_PAIRS pairs, the same ones at every call; no question and no answer occurs twice."""
    seen: set[str] = set()
    chosen: list[Pair] = []
    for module_name in MODULES:
        fresh = []
        for pair in _pairs_of_module(module_name):
            if pair.answer not in seen:  # a function is often visible in two modules
                seen.add(pair.answer)
                fresh.append(pair)
        fresh.sort(key=lambda pair: (len(pair.name), pair.name))  # short names are the best known
        chosen += fresh[:MAX_PER_MODULE]
    return chosen[:MAX_PAIRS]
